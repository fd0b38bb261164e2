"""Which row ids an upsert keeps: real Lance, without Spark."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_lance.exceptions import CommitPreemptedError, RowsRefusedError
from airflow_provider_lance.protocol import row_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.port import Overwrite, Upsert
from airflow_provider_lance.spark import writer
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather, gather_rows
from airflow_provider_lance.spark.comparison import remembered
from airflow_provider_lance.spark.sieve import DELETE_FLAG
from airflow_provider_lance.spark.writer import WriteTask
from tests.support.feeds import Lineage, feed, lineage
from tests.support.searches import search

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return create(tmp_path, range(6))


def create(folder: Path, ids: Iterable[int], **options: Any) -> str:
    uri = str(folder / "t.lance")
    lance.write_dataset(table(ids), uri, enable_stable_row_ids=True, **options)
    return uri


def table(ids: Iterable[int], v: int = 0) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def task(uri: str, **values: Any) -> WriteTask:
    return WriteTask(uri, "run", SCHEMA, 0, 1000, merge_keys=("id",), **values)


def written(port: LanceDatasetPort, ids: Iterable[int], v: int = 1) -> Upsert:
    """Write rows as the driver does; return the upsert to commit, on this handle or on another."""
    return as_upsert(gather_rows(table(ids, v), task(port.uri), port.dataset))


def as_upsert(epoch: CollectedFragments) -> Upsert:
    return Upsert(epoch.fragments, epoch.keys, ("id",), epoch.lookup)


def messages(each: WriteTask, *partitions: list[int]) -> list[Any]:
    """Return what the tasks of some partitions send, which come in batches of 2 rows."""
    return [
        SimpleNamespace(**row)
        for ids in partitions
        for sent in each(iter(table(ids, 1).to_batches(max_chunksize=2)))
        for row in sent.to_pylist()
    ]


def kept(uri: str, before: dict[Any, Lineage]) -> set[int]:
    """Return the keys whose rows still have the id and the creation that they had."""
    now = lineage(uri)
    same = {n for n in before.keys() & now.keys() if now[n].row_id == before[n].row_id}
    assert all(now[n].created == before[n].created for n in same)
    return same


# ------------------------------------------------------------------------------ one writer alone


def test_a_task_looks_a_large_partition_up_in_parts(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOKUP_BYTES", 50)
    monkeypatch.setattr(writer, "_opened", {})
    before = lineage(uri)
    epoch = gather(messages(task(uri), [9, 5, 8, 1, 7, 0, 2, 6]), task(uri), None)
    assert [each.physical_rows for each in epoch.fragments] == [4, 4]
    port = open_dataset(uri).commit(as_upsert(epoch))
    assert kept(uri, before) == set(range(6))
    assert sorted(feed(uri, port.version).updated) == [0, 1, 2, 5]
    assert sorted(feed(uri, port.version).inserted) == [6, 7, 8, 9]


def test_rows_of_tasks_and_of_the_driver_keep_their_ids(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_opened", {})
    before, each = lineage(uri), replace(task(uri), small_epoch_rows=2)
    port = open_dataset(uri)
    epoch = gather(messages(each, [9, 5, 1], [8, 2]), each, port.dataset)
    assert epoch.lookup is not None
    assert epoch.lookup.keys["id"].to_pylist() == [8, 2], "the driver looked up its own rows only"
    port = port.commit(as_upsert(epoch))
    assert kept(uri, before) == set(range(6))
    assert sorted(feed(uri, port.version).updated) == [1, 2, 5]


def test_a_key_with_several_rows_keeps_the_oldest_id(uri: str) -> None:
    lance.write_dataset(table([1, 1]), uri, mode="append")
    port = open_dataset(uri)
    port = port.commit(written(port, [1]))
    rows = lance.dataset(uri).to_table(filter="id = 1", with_row_id=True).to_pylist()
    assert rows == [{"id": 1, "v": 1, "_rowid": 1}]
    seen = feed(uri, port.version)
    assert (sorted(seen.updated), seen.inserted, seen.deleted) == ([1], {}, {6, 7})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [0.0, float("nan"), 1.5]),
        (pa.float16(), [0.0, float("nan"), 1.5]),
        (pa.string(), ["", "a'b", "ä日😀"]),
        (pa.large_string(), ["", "a'b", "ä日😀"]),
        (pa.binary(), [b"", b"\x00", b"\xff"]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(20, 2), [1, 2, 3]),
        (pa.date32(), [0, 1, 2]),
        (pa.timestamp("us", "UTC"), [0, 1, 2]),
        (pa.int8(), [-128, 0, 127]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("index", [False, True], ids=["", "under an index"])
def test_keys_of_every_type_are_found(
    tmp_path: Path, kind: pa.DataType, values: list[Any], index: bool
) -> None:
    uri = str(tmp_path / "t.lance")
    halves = pa.array(values, pa.float32()).cast(kind) if kind == pa.float16() else None
    keys = halves or pa.array(values, kind)
    with_null = pa.concat_arrays([keys, pa.nulls(1, kind)])
    rows = pa.table({"My key": with_null, "n": range(len(with_null))})
    dataset = lance.write_dataset(rows, uri, enable_stable_row_ids=True)
    if index and not pa.types.is_dictionary(kind):  # Lance indexes none of these
        dataset.create_scalar_index("My key", "BTREE")
    port = open_dataset(uri)
    each = WriteTask(uri, "run", port.dataset.schema, 0, 1000, merge_keys=("My key",))
    epoch = gather_rows(rows.slice(0, len(keys)), each, port.dataset)
    port = port.commit(Upsert(epoch.fragments, epoch.keys, ("My key",), epoch.lookup))
    seen = feed(uri, port.version, "n")
    assert (sorted(seen.updated), seen.inserted, seen.deleted) == (
        list(range(len(keys))),
        {},
        set(),
    )


# ---------------------------------------------------------------------------- beside other writers


def test_keys_that_others_change_after_the_write_appear_as_deletes_and_inserts(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = open_dataset(uri)
    late = written(port, [0, 1, 2, 3, 7, 8])
    port.dataset.delete("id = 1")
    lance.write_dataset(table([7]), uri, mode="append")
    before = lineage(uri)
    with caplog.at_level(logging.WARNING):
        port = open_dataset(uri).commit(late)
    assert "instead of updated: 3." in caplog.text
    assert kept(uri, before) == {0, 4, 5}
    seen = feed(uri, port.version)
    assert (sorted(seen.updated), sorted(seen.inserted)) == ([0], [1, 2, 3, 7, 8])
    assert seen.deleted == {before[n].row_id for n in (2, 3, 7)}


def test_an_append_that_landed_first_shares_no_id(uri: str) -> None:
    port = open_dataset(uri)
    late = written(port, [1, 100, 101])
    lance.write_dataset(table([200, 201]), uri, mode="append")
    before = lineage(uri)
    landed = port.commit(late)
    assert landed.version == port.version + 2
    assert kept(uri, before) == before.keys()
    assert sorted(feed(uri, landed.version).inserted) == [100, 101]


@pytest.mark.parametrize("text", [True, False])
def test_an_index_finds_the_rows_that_a_scan_finds(
    tmp_path: Path, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, uri = random.Random(1), str(tmp_path / "t.lance")

    def rows(count: int) -> pa.Table:
        ids = [(draw.randrange(300), draw.randrange(3)) for _ in range(count)] + [(None, None)]
        kind = pa.string() if text else pa.int64()
        first = pa.array([each for each, _ in ids], pa.int64()).cast(kind)
        return pa.table({"id": first, "part": [each for _, each in ids], "v": range(len(ids))})

    made = lance.write_dataset(rows(200), uri, max_rows_per_file=50)
    made.create_scalar_index("id", "BTREE")
    lance.write_dataset(rows(100), uri, mode="append")
    made = lance.dataset(uri)
    made.delete("v % 7 = 0")
    keys = rows(60).filter(pc.field("id").is_valid()).group_by(["id", "part"]).aggregate([])
    kept = pa.schema([made.schema.field(name) for name in ("id", "part", "v")])
    seen = []
    for limit in (0, 10**9):
        monkeypatch.setattr(row_ids, "_ROWS_PER_KEY", limit)
        assert (row_ids.through_index(made, keys) is None) is bool(limit)
        looked = row_ids.look_up(made, keys, ["v"]).rows.sort_by("_rowid")
        aside = remembered(made, keys, kept).sort_by("v")
        seen.append((looked.to_pylist(), aside.to_pylist()))
    assert seen[0] == seen[1]
    assert {row["id"] for row in seen[0][1]} >= {None}
    assert len(seen[0][0]) > 5


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_an_upsert_deletes_by_address_what_its_writer_found_in_the_same_version(
    tmp_path: Path, stable: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    uri = str(tmp_path / "t.lance")
    options: dict[str, Any] = {"enable_stable_row_ids": stable, "max_rows_per_file": 10}
    made = lance.write_dataset(table(range(60)), uri, **options)
    made.create_scalar_index("id", "BTREE")
    made.delete(f"id IN ({', '.join(map(str, draw.sample(range(60), 15)))})")
    ids = draw.sample(range(80), 30) + ([*range(20, 30)] if seed % 2 else [])
    changed = table(dict.fromkeys(ids), 1)
    port = open_dataset(uri)
    found = row_ids.look_up(port.dataset, changed.select(["id"]))
    fragments = task(uri).write(row_ids.known_first(changed, found).to_reader(), port.dataset)
    keys = row_ids.known_first(changed, found).select(["id"])
    change = Upsert(fragments, keys, ("id",), found)
    before = {row["id"]: row["v"] for row in made.to_table().to_pylist()}

    def merge(*_: Any) -> None:
        raise AssertionError("searched for the keys again")

    monkeypatch.setattr(lance.LanceDataset, "merge_insert", merge)
    landed = port.commit(change, {}).dataset
    rows = landed.to_table().to_pylist()
    assert len(rows) == len({row["id"] for row in rows})
    assert {row["id"]: row["v"] for row in rows} == before | dict.fromkeys(ids, 1)
    by_index = landed.to_table(filter="id IN (3, 21, 47, 70)").to_pylist()
    wanted = before | dict.fromkeys(ids, 1)
    assert {row["id"]: row["v"] for row in by_index} == {
        key: wanted[key] for key in (3, 21, 47, 70) if key in wanted
    }


def test_an_upsert_searches_again_if_its_writer_saw_an_older_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    old = open_dataset(create(tmp_path, range(6)))
    found = row_ids.look_up(old.dataset, table([1, 8]).select(["id"]))
    lance.write_dataset(table([8], 5), uri, mode="append")
    fragments = task(uri).write(table([1, 8], 1).to_reader(), old.dataset)
    port = open_dataset(uri)
    port.commit(Upsert(fragments, table([1, 8]).select(["id"]), ("id",), found), {})
    rows = lance.dataset(uri).to_table().to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [
        (0, 0), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0), (8, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "landed",
    [
        lambda dataset: dataset.delete("id = 1"),
        lambda dataset: dataset.update({"v": "7"}, "id = 1"),
        lambda dataset: (
            dataset.merge_insert("id").when_matched_update_all().execute(table([1, 2], 7))
        ),
        lambda dataset: dataset.optimize.compact_files(),
    ],
    ids=["delete", "update", "merge", "compaction"],
)
def test_a_change_of_the_same_fragments_preempts(tmp_path: Path, landed: Any) -> None:
    uri = create(tmp_path, range(6), max_rows_per_file=3)
    port = open_dataset(uri)
    late = written(port, [1, 100])
    landed(lance.dataset(uri))
    before = lineage(uri)
    with pytest.raises(CommitPreemptedError):
        port.commit(late)
    assert lineage(uri) == before


def test_ids_of_rows_that_stay_are_refused(uri: str) -> None:
    port = open_dataset(uri)
    epoch = written(port, [1, 2])
    merge = port.dataset.merge_insert("id").when_matched_delete()
    update, _ = merge.execute_uncommitted(table([1]).select(["id"]))
    with pytest.raises(RowsRefusedError, match=r"replaces 1 rows of .* a search found 2: row ids"):
        row_ids.carry_row_ids(port.dataset, update.operation, epoch.fragments, epoch.keys)


# ------------------------------------------------------------------------------------- histories


class History:
    """Random changes of one dataset; each upsert is compared with what the versions hold."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.patch = monkeypatch
        self.uri = create(folder, range(20), max_rows_per_file=7)
        self.handles = [open_dataset(self.uri)]
        self.keys_of: dict[int, int] = {}
        self.fresh_upserts = 0
        self.upserted = False

    def ids(self, most: int) -> list[int]:
        return self.random.sample(range(40), self.random.randint(1, most))

    def run(self, steps: int) -> None:
        for number in range(1, steps + 1):
            self.handles.append(open_dataset(self.uri))
            step = self.random.choice([*[self.upsert] * 5, self.delete, self.update, self.tend])
            step(number)
            self.upserted = step in (self.upsert, self.tend)
            for key, each in lineage(self.uri).items():
                assert self.keys_of.setdefault(each.row_id, key) == key, "a row id has two keys"

    def upsert(self, number: int) -> None:
        ids, uri = self.ids(25), self.uri
        rows = table(ids, number).append_column(
            DELETE_FLAG, pa.array([self.random.random() < 0.2 for _ in ids])
        )
        # A handle from before the last changes: fragments are in an order that was right then.
        old = self.random.choice([self.handles[-1], self.handles[-1], self.handles[-2]])
        each = replace(task(uri, flagged=True), target_rows_per_fragment=self.random.randint(2, 9))
        if self.random.random() < 0.5:
            epoch = gather_rows(rows, each, old.dataset)
        else:
            self.patch.setattr(writer, "LOOKUP_BYTES", self.random.choice([40, 10_000]))
            batches = iter(rows.to_batches(max_chunksize=4))
            messages = [row for sent in each(batches) for row in sent.to_pylist()]
            epoch = gather([SimpleNamespace(**row) for row in messages], each, old.dataset)
            old = self.handles[-1]
        # Upserts of one new key from one version both land, so the protocol reads the newest first.
        base = self.handles[-1] if self.upserted else old
        try:
            port = base.commit(as_upsert(epoch))
        except CommitPreemptedError:
            port = self.handles[-1].commit(as_upsert(epoch))
        fresh = old is self.handles[-1]
        self.fresh_upserts += fresh
        doomed = {row["id"] for row in rows.to_pylist() if row[DELETE_FLAG]}
        self.compare(port.version, set(ids) - doomed, doomed, exact=fresh)

    def compare(self, version: int, added: set[int], doomed: set[int], *, exact: bool) -> None:
        before, now = lineage(self.uri, version - 1), lineage(self.uri, version)
        assert now.keys() == (before.keys() - doomed) | added
        assert {n: now[n] for n in now.keys() - added} == {
            n: before[n] for n in before.keys() - added - doomed
        }
        same = {n for n in added & before.keys() if now[n].row_id == before[n].row_id}
        assert same == added & before.keys() or not exact
        assert all(now[n] == Lineage(before[n].row_id, before[n].created, version) for n in same)
        seen = feed(self.uri, version)
        assert (seen.updated.keys(), seen.inserted.keys()) == (same, added - same)
        gone = before.keys() & (doomed | added - same)
        assert seen.deleted == {before[n].row_id for n in gone}

    def delete(self, number: int) -> None:
        lance.dataset(self.uri).delete(f"id IN ({', '.join(map(str, self.ids(5)))})")

    def update(self, number: int) -> None:
        where = f"id IN ({', '.join(map(str, self.ids(5)))})"
        lance.dataset(self.uri).update({"v": str(number)}, where)

    def tend(self, number: int) -> None:
        dataset = lance.dataset(self.uri)
        match self.random.randint(0, 5):
            case 0 | 1:
                dataset.optimize.compact_files()
            case 2:
                dataset.create_scalar_index("id", "BTREE", replace=True)
            case 3:
                dataset.optimize.optimize_indices()
            case 4:
                dataset.update_config({"lance.row_lineage.spill": "true"})
                dataset.update_config({"lance.row_lineage.inline_max_bytes": "8"})
            case 5:
                rows = table(range(self.random.randint(0, 5), 40, 3), number)
                fragments = written(open_dataset(self.uri), rows["id"].to_pylist()).fragments
                open_dataset(self.uri).commit(Overwrite(fragments))


@search(quick=15, full=60)
def test_random_histories_keep_ids_unique_and_show_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    fresh = 0
    for seed in range(examples):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = History(folder, seed, monkeypatch)
        try:
            history.run(steps=10)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        fresh += history.fresh_upserts
    assert fresh > examples
