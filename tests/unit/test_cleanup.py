"""Cleanup on real datasets: what may go goes, and no evidence with it."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    DatasetRestoredError,
    HistoryGapError,
    PreconditionError,
    ProtocolVersionError,
    StorageUnavailableError,
)
from airflow_provider_lance.maintenance.cleanup import (
    Cleaned,
    Retention,
    clean_up,
    explain_cleanup,
    fold_all,
)
from airflow_provider_lance.maintenance.options import KEEP_SECONDS
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnRestore
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.port import Append, Change, Configure
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.drivers import QUERY, QUICK, SCHEMA, epoch_rows
from tests.support.maintenance import age, append, files, ids, make, manifest, numbers, stream

DAY = 24 * 3600
NOW = Retention(older_than=0)
EAGER = Retention(older_than=0, keep_active=0)
"""The shortest settings, without the floor that an active owner gives."""
SCHEMES = pytest.mark.parametrize("newer", [True, False])


def clean(uri: str, retention: Retention = NOW) -> Cleaned:
    return clean_up(open_dataset(uri), retention)


def explain(uri: str, retention: Retention = NOW) -> Cleaned:
    return explain_cleanup(open_dataset(uri), retention)


def state(uri: str, query_id: str = QUERY) -> Any:
    port = open_dataset(uri)
    return decode_query(port.config, query_id, port.version)


# ------------------------------------------------------------------------------ what may go


@SCHEMES
def test_versions_go_by_the_stores_clock(tmp_path: Path, newer: bool) -> None:
    uri = make(tmp_path, 6, enable_v2_manifest_paths=newer)
    age(uri, DAY + 60, [1, 2, 4])
    week = Retention(older_than=DAY)
    assert explain(uri, week).versions == 3
    assert numbers(uri) == [1, 2, 3, 4, 5, 6]
    done = clean(uri, week)
    assert (done.versions, done.older_than) == (3, DAY)
    assert numbers(uri) == [3, 5, 6]
    assert ids(uri) == Counter(range(60))


def test_data_files_go_when_no_version_names_them(tmp_path: Path) -> None:
    uri = make(tmp_path, 10)
    lance.dataset(uri).optimize.compact_files()
    assert len(list(Path(uri, "data").iterdir())) == 11
    told = explain(uri)
    before = files(uri)
    done = clean(uri)
    assert done == told
    assert done.data_files == 10
    assert len(list(Path(uri, "data").iterdir())) == 1
    assert done.bytes == sum(before.values()) - sum(files(uri).values())
    assert numbers(uri) == [12]
    assert ids(uri) == Counter(range(100))


def test_the_newest_version_stays_however_old(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    age(uri, 99 * DAY)
    assert clean(uri).versions == 2
    assert clean(uri) == Cleaned()
    assert numbers(uri) == [3]


@pytest.mark.parametrize(
    ("retain", "left"),
    [(1, [8]), (3, [6, 7, 8]), (8, [*range(1, 9)]), (9, [*range(1, 9)]), (50, [*range(1, 9)])],
)
def test_newest_versions_are_retained(tmp_path: Path, retain: int, left: list[int]) -> None:
    uri = make(tmp_path, 8)
    retention = Retention(older_than=0, retain_versions=retain)
    assert explain(uri, retention).versions == 8 - len(left)
    clean(uri, retention)
    assert numbers(uri) == left


def test_version_is_removed_only_when_age_and_count_both_allow_it(tmp_path: Path) -> None:
    uri = make(tmp_path, 8)
    age(uri, DAY, [1, 2, 3, 4, 5, 6, 7])
    clean(uri, Retention(older_than=3600, retain_versions=4))
    assert numbers(uri) == [5, 6, 7, 8]


def test_a_tagged_version_stays_and_can_be_read(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    lance.dataset(uri).tags.create("audit", 3)
    lance.dataset(uri).optimize.compact_files()
    assert explain(uri).versions == clean(uri).versions == 6
    assert numbers(uri) == [3, 8]
    assert lance.dataset(uri, version="audit").to_table().num_rows == 30


def test_a_branch_keeps_what_it_grew_from(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    lance.dataset(uri).create_branch("trial", 3)
    lance.dataset(uri).optimize.compact_files()
    clean(uri)
    assert 3 in numbers(uri)
    assert lance.dataset(uri).checkout_version(("trial", None)).to_table().num_rows == 30


def test_delete_rate_limit_is_passed_to_lance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 3)
    seen: list[dict[str, Any]] = []
    real = lance.LanceDataset.cleanup_old_versions

    def cleanup(dataset: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return real(dataset, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "cleanup_old_versions", cleanup)
    clean(uri, Retention(older_than=0, rate=50))
    assert [(each["delete_rate_limit"], each["versions"]) for each in seen] == [(50, [1, 2])]


@pytest.mark.parametrize("versions", [1, 4])
def test_unverified_files_go_only_when_asked(tmp_path: Path, versions: int) -> None:
    uri = make(tmp_path, versions)
    orphan = Path(uri, "data", "orphan.lance")
    orphan.write_bytes(b"left by a task that was killed")
    clean(uri)
    assert orphan.exists()
    done = clean(uri, Retention(older_than=0, unverified=True))
    assert not orphan.exists()
    assert done.data_files == 1
    assert ids(uri) == Counter(range(versions * 10))


# --------------------------------------------------------------------------------- streams


def test_no_version_above_a_fold_goes(tmp_path: Path) -> None:
    uri = make(tmp_path, 5)
    driver = stream(uri)
    for _ in range(4):
        driver.step()
    before = open_dataset(uri).version
    assert state(uri).watermark == NO_EPOCH
    done = clean(uri, EAGER)
    assert done.folded == (QUERY,)
    assert numbers(uri) == [before + 1]
    assert (state(uri).watermark, state(uri).folded_version) == (3, before)
    mark = exact_watermark(open_dataset(uri), QUERY)
    assert (mark.epoch, mark.missing) == (3, 0)
    driver.step()
    assert exact_watermark(open_dataset(uri), QUERY).epoch == 4


def test_cleanup_with_a_fold_removes_what_its_explanation_names(tmp_path: Path) -> None:
    for retain in (None, 1, 3):
        uri = make(tmp_path, 5, name=f"{retain}.lance")
        driver = stream(uri)
        for _ in range(3):
            driver.step()
        retention = Retention(older_than=0, keep_active=0, retain_versions=retain)
        before = files(uri)
        told = explain(uri, retention)
        assert files(uri) == before
        done = clean(uri, retention)
        assert (done.versions, done.folded) == (told.versions, told.folded)


def test_an_epoch_that_lands_beside_the_cleanup_stays_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the fold and the removal the stream goes on."""
    uri = make(tmp_path, 3)
    driver = stream(uri)
    driver.step()
    real = lance.LanceDataset.cleanup_old_versions

    def cleanup(dataset: Any, **kwargs: Any) -> Any:
        driver.step()
        append(uri, 5000)
        return real(dataset, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "cleanup_old_versions", cleanup)
    clean(uri, EAGER)
    mark = exact_watermark(open_dataset(uri), QUERY)
    assert (mark.epoch, mark.missing) == (1, 0)


def test_every_query_is_folded_in_one_commit(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    drivers = [stream(uri, query_id=name) for name in ("a", "b", "c")]
    for count, driver in enumerate(drivers, 1):
        for _ in range(count):
            driver.step([{"id": 1, "epoch": 1}])
    before = open_dataset(uri).version
    port, folded = fold_all(open_dataset(uri))
    assert folded == ("a", "b", "c")
    assert port.version == before + 1
    assert [state(uri, name).watermark for name in "abc"] == [0, 1, 2]
    again, nobody = fold_all(port)
    assert (again.version, nobody) == (port.version, ())
    for driver in drivers:
        driver.step([{"id": 1, "epoch": 1}])
    assert [exact_watermark(open_dataset(uri), name).epoch for name in "abc"] == [1, 2, 3]


def test_released_query_is_folded_and_keeps_no_old_version(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    ended, going = stream(uri, query_id="ended"), stream(uri, query_id="going")
    ended.step([{"id": 1, "epoch": 1}])
    assert ended.committer.release()
    released = state(uri, "ended")
    going.step([{"id": 1, "epoch": 1}])
    going.step([{"id": 1, "epoch": 1}])
    done = clean(uri, EAGER)
    assert done.folded == ("ended", "going")
    assert min(numbers(uri)) > released.folded_version
    after = state(uri, "ended")
    assert after.folded_version == open_dataset(uri).version - 1
    assert (after.owner, after.watermark, after.done) == (
        released.owner,
        released.watermark,
        released.done,
    )
    assert exact_watermark(open_dataset(uri), "ended").epoch == 0


def test_a_released_query_restarts_where_it_ended(tmp_path: Path) -> None:
    uri, log = make(tmp_path, 1), dict[str, int]()
    driver = stream(uri, log=log)
    driver.step()
    driver.step()
    assert driver.committer.release()
    log["committed"] = 0  # stopped before Spark logged it
    append(uri, 5000)
    age(uri, DAY)
    clean(uri)
    assert len(numbers(uri)) == 1
    successor = stream(uri, log=log)
    successor.step()
    successor.step()
    assert ids(uri) == Counter(
        [*range(10), *range(5000, 5010), *(row["id"] for n in range(3) for row in epoch_rows(n))]
    )


def test_a_fold_keeps_to_the_generation_of_its_query(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    old = stream(uri)
    for _ in range(4):
        old.step()
    policy = CommitPolicy(new_generation=True, backoff=QUICK)
    new = stream(uri, log={"planned": -1}, checkpoint_id="22222222-bbbb", policy=policy)
    new.step([{"id": 7, "epoch": 0}])
    assert state(uri).generation == 1
    clean(uri, EAGER)
    assert state(uri).watermark == 0
    new.step([{"id": 8, "epoch": 1}])
    assert exact_watermark(open_dataset(uri), QUERY).epoch == 1


@pytest.mark.parametrize("released", [False, True])
def test_young_versions_stay_while_a_driver_may_hang(tmp_path: Path, released: bool) -> None:
    """A released owner's predecessor may hang as well as an active one's."""
    uri = make(tmp_path, 3)
    driver = stream(uri)
    driver.step()
    driver.step()
    if released:
        assert driver.committer.release()
    before = numbers(uri)
    assert explain(uri).versions == 0
    done = clean(uri)
    assert (done.versions, done.older_than) == (0, KEEP_SECONDS)
    assert set(before) <= set(numbers(uri))
    age(uri, KEEP_SECONDS + 5, before[:3])
    assert clean(uri).versions == 3


@pytest.mark.parametrize("released", [False, True])
def test_versions_with_undone_epochs_are_kept_until_the_loss_is_accepted(
    tmp_path: Path, released: bool
) -> None:
    """A released query's config was restored, too, and says that all is folded."""
    uri, log = make(tmp_path, 1), dict[str, int]()
    driver = stream(uri, log=log)
    driver.step()
    driver.step()
    if released:
        assert driver.committer.release()
        driver = stream(uri, log=log)
    before = open_dataset(uri).version
    driver.step()
    driver.step()
    lance.dataset(uri, version=before).restore()
    newest = open_dataset(uri).version
    assert explain(uri, EAGER).versions <= before
    clean(uri, EAGER)
    assert set(range(before + 1, newest + 1)) <= set(numbers(uri))
    with pytest.raises(DatasetRestoredError, match=f"with version {newest - 1}: .*accept:2-3"):
        stream(uri, log=log)
    held = lance.dataset(uri, version=newest - 1).to_table()
    assert set(held["epoch"].to_pylist()) >= {2, 3}
    accepted = CommitPolicy(backoff=QUICK, on_restore=OnRestore(2, 3))
    stream(uri, log=log, policy=accepted).step()
    clean(uri, EAGER)
    assert newest - 1 not in numbers(uri)


@pytest.mark.parametrize("released", [False, True])
def test_a_restore_is_not_folded_over_when_the_undone_versions_are_gone(
    tmp_path: Path, released: bool
) -> None:
    uri, log = make(tmp_path, 1), dict[str, int]()
    driver = stream(uri, log=log)
    driver.step()
    if released:
        assert driver.committer.release()
        driver = stream(uri, log=log)
    before = open_dataset(uri).version
    driver.step()
    driver.step()
    undone = [version for version in numbers(uri) if version > before]
    lance.dataset(uri, version=before).restore()
    lance.dataset(uri).cleanup_old_versions(versions=undone)
    clean(uri, EAGER)
    with pytest.raises(DatasetRestoredError, match="accept:1-2"):
        stream(uri, log=log)


def test_cleanup_uses_the_given_age_when_it_is_above_the_minimum(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    stream(uri).step()
    age(uri, KEEP_SECONDS + 60)
    assert clean(uri, Retention(older_than=DAY)).older_than == DAY


def gap(uri: str) -> None:
    """Take the evidence of the last epochs away, as a foreign cleanup does."""
    driver = stream(uri)
    driver.step()
    driver.step()
    append(uri, 5000)
    newest = open_dataset(uri).version
    lance.dataset(uri).cleanup_old_versions(versions=[*range(1, newest)])


def test_a_query_with_a_gap_stops_the_cleanup(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    gap(uri)
    append(uri, 6000)
    before = files(uri)
    for attempt in (clean, explain):
        with pytest.raises(HistoryGapError, match=r"'orders'.*t\.lance: \d+ .*\(version \d+\)"):
            attempt(uri, EAGER)
    assert files(uri) == before
    with pytest.raises(HistoryGapError):
        fold_all(open_dataset(uri))


def test_gap_of_one_query_keeps_the_versions_of_the_other_queries(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    gap(uri)
    other = stream(uri, query_id="other")
    other.step([{"id": 1, "epoch": 1}])
    other.step([{"id": 2, "epoch": 1}])
    with pytest.raises(HistoryGapError):
        clean(uri, EAGER)
    mark = exact_watermark(open_dataset(uri), "other")
    assert (mark.epoch, mark.missing) == (1, 0)


def test_unverified_files_are_never_removed_beside_an_active_owner(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    stream(uri).step()
    before = files(uri)
    retention = Retention(older_than=0, unverified=True, keep_active=0)
    for attempt in (clean, explain):
        with pytest.raises(PreconditionError, match=r"deleteUnverified.*\['orders'\].*t\.lance"):
            attempt(uri, retention)
    assert files(uri) == before


def test_foreign_auto_cleanup_is_warned_of_with_the_keys_to_remove(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = make(tmp_path, 2)
    with caplog.at_level(logging.WARNING):
        clean(uri)
    assert "auto-cleanup" not in caplog.text
    lance.dataset(uri).update_config({"lance.auto_cleanup.interval": "20"})
    with caplog.at_level(logging.WARNING):
        clean(uri)
    assert "'lance.auto_cleanup.interval': '20'" in caplog.text
    assert "Remove these keys" in caplog.text


# ---------------------------------------------------------------------------- what goes wrong


class Racer:
    """Folds or appends right before each commit of the fold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
        real, self.calls = LanceDatasetPort.commit, 0

        def commit(port: LanceDatasetPort, change: Change, *args: Any) -> LanceDatasetPort:
            if isinstance(change, Configure):
                self.calls += 1
                happens(real, port, self.calls)
            return real(port, change, *args)

        monkeypatch.setattr(LanceDatasetPort, "commit", commit)


def test_a_fold_that_a_drivers_own_preempted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 1)
    driver = stream(uri)
    driver.step()
    driver.step()

    def happens(commit: Any, port: LanceDatasetPort, call: int) -> None:
        if call == 1:
            append(uri, 5000)
            newest = port.latest()
            commit(
                newest,
                Configure({f"spark.lance.streaming.lastEpochVersion.{QUERY}": str(newest.version)}),
            )
            append(uri, 6000)

    racer = Racer(monkeypatch, happens)
    port, folded = fold_all(open_dataset(uri), QUICK)
    assert (racer.calls, folded) == (2, (QUERY,))
    assert decode_query(port.config, QUERY, port.version).folded_version == port.version - 1


def test_a_fold_that_never_gets_through_ends_in_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 1)
    stream(uri).step()
    stale = {f"spark.lance.streaming.lastEpochVersion.{QUERY}": "1"}
    Racer(
        monkeypatch,
        lambda commit, port, call: commit(port.latest(), Configure(stale)),
    )
    before = numbers(uri)
    with pytest.raises(CommitPreemptedError, match="preempted"):
        fold_all(open_dataset(uri), QUICK)
    assert set(before) <= set(numbers(uri))


def test_an_append_is_no_obstacle_to_a_fold_and_is_not_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 1)
    driver = stream(uri)
    driver.step()
    before = open_dataset(uri).version
    racer = Racer(monkeypatch, lambda commit, port, call: driver.step())
    fold_all(open_dataset(uri), QUICK)
    assert racer.calls == 1
    assert (state(uri).watermark, state(uri).folded_version) == (0, before)
    assert exact_watermark(open_dataset(uri), QUERY).epoch == 1


def test_a_claim_in_the_middle_of_a_fold_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, log = make(tmp_path, 1), dict[str, int]()
    stream(uri, log=log).step()
    successor = stream(uri, log=log, run_id="successor")
    calls = []

    def happens(commit: Any, port: LanceDatasetPort, call: int) -> None:
        if not calls:
            calls.append(call)
            successor.step()

    Racer(monkeypatch, happens)
    fold_all(open_dataset(uri), QUICK)
    assert state(uri).owner.driver.run_id == "successor"
    assert exact_watermark(open_dataset(uri), QUERY).epoch == 1
    successor.step()
    assert ids(uri) == Counter(
        [*range(10), *(row["id"] for n in range(3) for row in epoch_rows(n))]
    )


def test_a_dataset_that_is_gone_is_named(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    port = open_dataset(uri)
    shutil.rmtree(uri)
    with pytest.raises(DatasetNotFoundError, match=r"t\.lance"):
        clean_up(port, NOW)


def test_a_store_that_refuses_to_delete_is_named_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 3)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(lance.LanceDataset, "cleanup_old_versions", refuse)
        with pytest.raises(StorageUnavailableError, match="access denied"):
            clean(uri)
    assert clean(uri).versions == 2


def test_a_version_that_another_cleanup_took_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 5)
    real = lance.LanceDataset.cleanup_old_versions

    def cleanup(dataset: Any, **kwargs: Any) -> Any:
        for number in (1, 3):
            manifest(uri, number).unlink()
        return real(dataset, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "cleanup_old_versions", cleanup)
    clean(uri)
    assert numbers(uri) == [5]


def test_a_folded_query_whose_owner_is_another_tools_stops_everything(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    lance.dataset(uri).update_config({"spark.lance.streaming.owner.q": "theirs"})
    before = files(uri)
    with pytest.raises(ProtocolVersionError, match=r"owner\.q"):
        clean(uri)
    assert files(uri) == before


def test_rows_written_but_not_committed_yet_survive(tmp_path: Path) -> None:
    """A cleanup in the middle of an epoch must not take the epoch's files."""
    import pyarrow as pa
    from lance.fragment import write_fragments

    uri = make(tmp_path, 3)
    port = open_dataset(uri)
    fragments = write_fragments(pa.Table.from_pylist(epoch_rows(7), SCHEMA), port.dataset)
    clean(uri)
    port.latest().commit(Append(fragments))
    assert ids(uri) == Counter([*range(30), 700, 701, 702])
