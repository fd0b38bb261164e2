"""What unusual versions of a dataset give to its readers: each row once, or a named error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import DataFile

from airflow_provider_lance.exceptions import (
    DatasetRestoredError,
    SchemaMismatchError,
    SourceChangedError,
    SourceDataLossError,
    SpecError,
)
from tests.support.reading import Reading, numbers

FEED = {"readChangeFeed": "true"}
LATEST = {"startingVersion": "latest"}
ONE_VERSION = {"maxVersionsPerTrigger": "1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a dataset of five rows with stable row ids."""
    made = tmp_path / "t.lance"
    lance.write_dataset(numbers(0, 5), made, enable_stable_row_ids=True)
    return made


def append(path: Path, first: int, last: int, **options: Any) -> None:
    lance.write_dataset(numbers(first, last), path, mode="append", **options)


def begun(path: Path, **options: str) -> Reading:
    """Return a query that has read all there is."""
    reading = Reading(path, **options)
    reading.rest()
    return reading


def inserts(*keys: int) -> list[tuple[str, int]]:
    return [("insert", key) for key in keys]


# ------------------------------------------------------------------------------- the beginning


@pytest.mark.parametrize(
    ("options", "first"), [({}, inserts(*range(5))), (LATEST, []), (FEED, inserts(*range(5)))]
)
def test_a_commit_before_the_first_epoch_is_committed_does_not_move_the_beginning(
    path: Path, options: dict[str, str], first: list[tuple[str, int]]
) -> None:
    reading = Reading(path, **options)
    end = reading.reader.latest(reading.position)
    append(path, 5, 8)
    reading.restart()
    assert reading.read(reading.position, end) == []
    reading.position = end
    assert reading.keys() == [*first, *inserts(5, 6, 7)]


def test_what_an_overwrite_replaced_is_not_read_by_a_query_that_starts_there(path: Path) -> None:
    time.sleep(0.001)
    since = datetime.now(UTC).isoformat()
    lance.write_dataset(numbers(7, 9), path, mode="overwrite")
    for start in ({"startingVersion": "2"}, {"startingTimestamp": since}):
        for more in ({}, FEED):
            assert Reading(path, **start, **more).keys() == inserts(7, 8)


def test_a_start_that_is_gone_or_in_the_future_is_refused(path: Path) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with pytest.raises(SpecError, match=r"startingVersion=2 is in the future: .* is 1"):
        Reading(path, startingVersion="2").epoch()
    with pytest.raises(SpecError, match=r"startingTimestamp=.* is in the future"):
        Reading(path, startingTimestamp=tomorrow).epoch()
    append(path, 5, 6)
    lance.dataset(path).cleanup_old_versions(versions=[1])
    with pytest.raises(SourceDataLossError, match=r"version 1 of .* was cleaned up"):
        Reading(path, startingVersion="1").epoch()
    with pytest.raises(SourceDataLossError, match=r"before the oldest version .* cleaned up, 2"):
        Reading(path, startingTimestamp="2020-01-01").epoch()


# ---------------------------------------------------------------------- versions without changes


@pytest.mark.parametrize("options", [{}, FEED])
def test_versions_that_change_no_rows_pass_unnoticed(path: Path, options: dict[str, str]) -> None:
    reading = begun(path, **options)
    dataset = lance.dataset(path)
    dataset.delete("k = 77")
    dataset.update({"v": "1"}, "k = 77")
    dataset.update_config({"note": "x"})
    dataset.create_scalar_index("k", "BTREE")
    operation = lance.LanceOperation.Append([])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    append(path, 0, 0)
    append(path, 5, 7)
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    assert reading.keys() == inserts(5, 6)


def test_a_position_moves_on_over_many_quiet_versions_in_one_epoch(path: Path) -> None:
    reading = begun(path, **ONE_VERSION)
    dataset = lance.dataset(path)
    for number in range(250):
        dataset.update_config({"note": str(number)})
    assert reading.epoch() == []
    assert reading.position.version == 251
    assert reading.epoch() is None
    append(path, 5, 6)
    assert reading.keys() == inserts(5)


def test_an_upsert_that_only_inserts_is_an_append(path: Path) -> None:
    reading = begun(path)
    upsert = lance.dataset(path).merge_insert("k").when_matched_update_all()
    upsert.when_not_matched_insert_all().execute(numbers(7, 9))
    assert reading.keys() == inserts(7, 8)


# ----------------------------------------------------------- changes that no transaction tells of


def test_a_replaced_data_file_is_not_passed_over(path: Path) -> None:
    readings = [begun(path), begun(path, **FEED), begun(path, columns="k")]
    dataset = lance.dataset(path)
    fragment = dataset.get_fragments()[0]
    [old] = fragment.metadata.files
    new = lance.file.LanceFileWriter(str(path / "data/new.lance"), dataset.schema)
    new.write_batch(pa.table({"k": range(5), "v": range(100, 105)}, dataset.schema))
    new.close()
    size = (path / "data/new.lance").stat().st_size
    versions = old.file_major_version, old.file_minor_version
    file = DataFile("new.lance", old.fields, old.column_indices, *versions, size)
    group = lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(dataset, operation, read_version=1)
    for reading in readings:
        with pytest.raises(SourceChangedError, match=r"version 2 of .* \(DataReplacement\)"):
            reading.epoch()


def test_a_column_added_with_values_stops_only_who_reads_it(path: Path) -> None:
    everything, chosen = begun(path), begun(path, columns="k,v")
    lance.dataset(path).add_columns({"w": "k + 1"})
    lance.write_dataset(pa.table({"k": [5], "v": [5], "w": [9]}), path, mode="append")
    assert chosen.rest() == [(3, "insert", {"k": 5, "v": 5})]
    with pytest.raises(SchemaMismatchError, match=r"version 2 .* than version 1, .* w .* is new"):
        everything.epoch()
    everything.restart()
    with pytest.raises(SourceChangedError, match=r"version 2 of .* \(Merge\)"):
        everything.epoch()


# ------------------------------------------------------------------------------ changed columns


@pytest.mark.parametrize("options", [{}, FEED])
def test_a_restart_reads_on_with_a_column_that_was_added_empty(
    path: Path, options: dict[str, str]
) -> None:
    reading = begun(path, **options)
    append(path, 5, 6)
    lance.dataset(path).add_columns(pa.schema([("w", pa.int64())]))
    lance.write_dataset(pa.table({"k": [6], "v": [6], "w": [1]}), path, mode="append")
    assert reading.epoch() == [(2, "insert", {"k": 5, "v": 5})]
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=r"version 3 .* w \(int64\) is new. Load"):
            reading.epoch()
    reading.restart()
    assert reading.rest() == [(4, "insert", {"k": 6, "v": 6, "w": 1})]


def test_a_dropped_column_and_one_of_another_type_are_named_with_the_versions(path: Path) -> None:
    reading = begun(path)
    lance.dataset(path).drop_columns(["v"])
    with pytest.raises(SchemaMismatchError, match=r"version 2 .* version 1.* v \(int64\) is miss"):
        reading.epoch()
    reading.restart()
    lance.dataset(path).alter_columns({"path": "k", "data_type": pa.int32()})
    with pytest.raises(SchemaMismatchError, match=r"version 3 .* version 2.* k is int32, not int6"):
        reading.epoch()
    with pytest.raises(SchemaMismatchError, match=r"version 1 .* version 3.* k is int64, not int3"):
        Reading(path, startingVersion="1").rest()


@pytest.mark.parametrize("options", [{}, ONE_VERSION])
def test_rows_from_before_a_renaming_are_refused_and_not_null(
    path: Path, options: dict[str, str]
) -> None:
    reading = begun(path, **options)
    append(path, 5, 6)
    lance.dataset(path).alter_columns({"path": "v", "name": "w"})
    for each in (Reading(path, startingVersion="1", **options), reading):
        each.restart()
        with pytest.raises(SchemaMismatchError, match="w is named v"):
            each.rest()


def test_the_limits_do_not_decide_the_values_of_a_column_that_was_dropped_and_added(
    path: Path,
) -> None:
    append(path, 5, 7)
    lance.dataset(path).drop_columns(["v"])
    lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))
    found = [Reading(path, startingVersion="1", **more).rest() for more in ({}, ONE_VERSION)]
    assert found[0] == found[1]
    assert found[0][-1] == (2, "insert", {"k": 6, "v": 6})


def test_a_column_that_may_be_null_now_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    lance.write_dataset(pa.table({"k": [1]}, schema), path)
    reading = begun(path)
    lance.dataset(path).alter_columns({"path": "k", "nullable": True})
    lance.write_dataset(pa.table({"k": pa.array([None], pa.int64())}), path, mode="append")
    with pytest.raises(SchemaMismatchError, match=r"version 2 .* k may be null"):
        reading.epoch()
    reading.restart()
    assert reading.rest() == [(3, "insert", {"k": None})]


def test_rows_are_read_whose_version_has_none_of_the_columns(path: Path) -> None:
    lance.dataset(path).add_columns(pa.schema([("w", pa.int64())]))
    assert len(Reading(path, startingVersion="1", columns="w").rest()) == 5


# ------------------------------------------------------------------- restored, recreated, damaged


@pytest.mark.parametrize("down", [False, True], ids=["idle", "down"])
@pytest.mark.parametrize("versions", [1, 2, 3])
def test_a_recreated_dataset_is_refused_at_any_version(
    path: Path, versions: int, down: bool
) -> None:
    append(path, 5, 6)
    reading = begun(path)
    shutil.rmtree(path)
    lance.write_dataset(numbers(0, 5), path, enable_stable_row_ids=True)
    for _ in range(versions - 1):
        append(path, 5, 6)
    if down:
        reading.restart()
    with pytest.raises(DatasetRestoredError, match="not the one that this query has read"):
        reading.epoch()


def test_a_restore_is_refused_also_after_a_cleanup(path: Path) -> None:
    append(path, 5, 6)
    reading = begun(path)
    lance.dataset(path, version=1).restore()
    with pytest.raises(DatasetRestoredError, match="version 3 of .* restores an older version"):
        reading.epoch()
    lance.dataset(path).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(SourceDataLossError, match="version 2 of .* was cleaned up"):
        reading.epoch()


def test_an_older_copy_put_back_is_read_on_from_what_both_have(path: Path, tmp_path: Path) -> None:
    reading = begun(path)
    shutil.copytree(path, tmp_path / "copy")
    append(path, 5, 9)
    append(path, 9, 12)
    reading.reader.latest(reading.position)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    append(path, 20, 22)
    assert reading.keys() == inserts(20, 21)


def test_a_commit_that_took_the_number_of_a_version_that_was_cleaned_up_is_refused(
    path: Path, tmp_path: Path
) -> None:
    reading = begun(path)
    shutil.copytree(path, tmp_path / "paused")
    append(path, 5, 8)
    append(path, 8, 11)
    append(tmp_path / "paused", 50, 53)
    lance.dataset(path).cleanup_old_versions(versions=[2])
    shutil.copytree(tmp_path / "paused", path, dirs_exist_ok=True)
    assert lance.dataset(path).version == 3
    with pytest.raises(
        SourceDataLossError, match="version 3 of .* was not made from the version 2"
    ):
        reading.epoch()


def test_a_missing_data_file_is_data_loss(path: Path) -> None:
    append(path, 5, 6)
    for file in (path / "data").iterdir():
        file.unlink()
    with pytest.raises(SourceDataLossError, match=r"version 2 of .* lacks a file of its fragment"):
        Reading(path).rest()


def test_a_query_whose_version_was_cleaned_up_is_refused(path: Path) -> None:
    reading = begun(path)
    append(path, 5, 6)
    append(path, 6, 7)
    lance.dataset(path).cleanup_old_versions(versions=[1])
    with pytest.raises(
        SourceDataLossError, match="version 1 of .* the query's position, version 1"
    ):
        reading.epoch()


# --------------------------------------------------------------------------- formats and numbers


@pytest.mark.parametrize("version", ["legacy", "2.0", "stable"])
@pytest.mark.parametrize("feed", [False, True])
def test_every_storage_format_is_read(tmp_path: Path, version: Any, feed: bool) -> None:
    path = tmp_path / "t.lance"
    format = {"data_storage_version": version, "enable_stable_row_ids": feed}
    lance.write_dataset(numbers(0, 5), path, **format)
    reading = Reading(path, maxRowsPerTrigger="2", readChangeFeed=str(feed).lower())
    assert reading.keys() == inserts(*range(5))
    append(path, 5, 7)
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    assert reading.keys() == inserts(5, 6)
    if feed:
        dataset.update({"v": "v + 1"}, "k = 3")
        dataset.delete("k > 4")
        images = [("update_preimage", 3), ("update_postimage", 3)]
        assert reading.keys() == [*images, ("delete", 5), ("delete", 6)]


def test_sparse_changes_of_a_large_fragment_are_found_beside_its_deleted_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.lance"
    lance.write_dataset(numbers(0, 20_000), path, enable_stable_row_ids=True)
    lance.dataset(path).delete("k % 7 = 3")
    reading = begun(path, **FEED)
    lance.dataset(path).delete("k in (1000, 9001, 19999)")
    lance.dataset(path).update({"v": "v + 1"}, "k in (12, 10002, 19996)")
    assert reading.rest() == [
        *((3, "delete", {"k": key, "v": key}) for key in (1000, 9001, 19999)),
        *((4, "update_preimage", {"k": key, "v": key}) for key in (12, 10002, 19996)),
        *((4, "update_postimage", {"k": key, "v": key + 1}) for key in (12, 10002, 19996)),
    ]


def test_more_than_a_thousand_fragments_are_read_within_the_limit(path: Path) -> None:
    reading = begun(path, maxRowsPerTrigger="400")
    append(path, 5, 1105, max_rows_per_file=1)
    sizes, keys = [], []
    while (epoch := reading.epoch()) is not None:
        sizes.append(len(epoch))
        keys += [row["k"] for _, _, row in epoch]
    assert sizes == [400, 400, 300]
    assert keys == list(range(5, 1105))


def test_a_branch_is_a_dataset_of_its_own(path: Path) -> None:
    main = begun(path)
    branch = lance.dataset(path).create_branch("b")
    lance.write_dataset(numbers(5, 7), branch, mode="append")
    assert main.rest() == []
    assert Reading(Path(branch.uri)).keys() == inserts(*range(7))


def doubled_hour(end: datetime) -> str:
    """Return a time zone whose clocks go back from 1 hour before UTC to UTC at a local time."""
    day = end.timetuple().tm_yday
    leap = end.year % 4 == 0 and day > 59
    return f"STD0DST-1,J1/0,J{day - leap}/{end:%H:%M:%S}"


def test_the_commit_time_does_not_depend_on_the_time_zone_of_the_reader(path: Path) -> None:
    program = (
        "import sys\n"
        "from airflow_provider_lance.protocol.dataset import open_dataset\n"
        "from airflow_provider_lance.source.parts import commit_time\n"
        "print(commit_time(open_dataset(sys.argv[1])))"
    )
    now = datetime.now(UTC)
    before, after = (doubled_hour(now + timedelta(minutes=each)) for each in (90, 30))
    zones = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", before, after)
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "TZ": zone},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for zone in zones
    }
    assert len(found) == 1, found
    assert abs(int(found.pop()) / 1_000_000 - time.time()) < 600
