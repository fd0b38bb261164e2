"""What a task does with a partition and the driver with its messages, on a real small dataset."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.exceptions import DatasetNotFoundError, RowsRefusedError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Append
from airflow_provider_lance.spark import writer
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather
from airflow_provider_lance.spark.sieve import DELETE_FLAG
from airflow_provider_lance.spark.writer import WriteTask

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SMALL, LARGE = 1000, 0
BOTH = pytest.mark.parametrize("small_epoch_rows", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture
def task(tmp_path: Path) -> WriteTask:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(SCHEMA.empty_table(), uri)
    return WriteTask(
        uri=uri,
        run_id="run",
        schema=SCHEMA,
        small_epoch_rows=SMALL,
        target_rows_per_fragment=1_000_000,
    )


def batch(ids: Iterable[int | None], **columns: list[Any]) -> pa.RecordBatch:
    numbers = list(ids)
    rows = {"id": pa.array(numbers, pa.int64()), "name": [f"n{n}" for n in numbers], **columns}
    return pa.RecordBatch.from_pydict(rows)


def messages(task: WriteTask, *partitions: list[pa.RecordBatch]) -> list[Any]:
    """Run the task on each partition, and give its messages the form of Spark's rows."""
    return [
        SimpleNamespace(**message.to_pylist()[0])
        for batches in partitions
        for message in task(iter(batches))
    ]


def gathered(task: WriteTask, *partitions: list[pa.RecordBatch]) -> CollectedFragments:
    return gather(messages(task, *partitions), task, lance.dataset(task.uri))


def stored(task: WriteTask, epoch: CollectedFragments) -> list[int]:
    """Commit an epoch's fragments and return the ids that a reader then sees."""
    port = open_dataset(task.uri).commit(Append(epoch.fragments))
    return sorted(port.dataset.to_table().column("id").to_pylist())


# --------------------------------------------------------------------------------- one task


def test_a_task_without_rows_sends_nothing(task: WriteTask) -> None:
    assert messages(task, [], [batch([])]) == []


def test_a_small_partition_sends_its_rows_and_writes_nothing(task: WriteTask) -> None:
    (message,) = messages(task, [batch([1, 2]), batch([]), batch([3])])
    assert (message.rows, message.fragments, message.keys) == (3, None, None)
    assert pa.ipc.open_stream(message.data).read_all().column("id").to_pylist() == [1, 2, 3]
    assert not Path(task.uri, "data").exists()


def test_a_large_partition_is_written_and_sends_its_fragments(task: WriteTask) -> None:
    (message,) = messages(replace(task, small_epoch_rows=2), [batch([1, 2]), batch([3])])
    assert (message.rows, message.data) == (3, None)
    assert message.bytes > 0
    assert len(json.loads(message.fragments)) == 1
    assert len(list(Path(task.uri, "data").iterdir())) == 1


def test_exactly_so_many_rows_are_still_small(task: WriteTask) -> None:
    (message,) = messages(replace(task, small_epoch_rows=3), [batch([1, 2, 3])])
    assert message.data is not None


def test_few_but_big_rows_do_not_travel_to_the_driver(task: WriteTask) -> None:
    (message,) = messages(replace(task, inline_bytes=1000), [batch([1], name=["x" * 2000])])
    assert message.data is None
    assert message.rows == 1


def test_the_dataset_is_opened_once_per_run(
    task: WriteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def noting(uri: str, options: Any, **named: Any) -> Any:
        opened.append(uri)
        return open_dataset(uri, options, **named)

    monkeypatch.setattr(writer, "open_dataset", noting)
    monkeypatch.setattr(writer, "_opened", {})
    large = replace(task, small_epoch_rows=LARGE)
    messages(large, [batch([1])], [batch([2])])
    assert len(opened) == 1
    messages(replace(large, run_id="next"), [batch([3])])
    assert len(opened) == 2


def test_a_dataset_that_is_gone_is_named(task: WriteTask) -> None:
    gone = replace(task, uri=f"{task.uri}.gone", small_epoch_rows=LARGE)
    with pytest.raises(DatasetNotFoundError, match=r"t\.lance\.gone"):
        messages(gone, [batch([1])])


def test_storage_options_are_not_shown(task: WriteTask) -> None:
    assert "s3cret" not in repr(replace(task, storage_options={"key": "s3cret"}))


# ------------------------------------------------------------------------------- the driver


def test_epoch_without_messages_gives_no_fragments(task: WriteTask) -> None:
    assert gathered(task) == CollectedFragments([], None, 0, 0, 0)


def test_small_partitions_become_one_fragment(task: WriteTask) -> None:
    epoch = gathered(task, [batch([1, 2])], [batch([3])], [batch([4])])
    assert (len(epoch.fragments), epoch.rows, epoch.deletes) == (1, 4, 0)
    assert epoch.bytes > 0
    assert stored(task, epoch) == [1, 2, 3, 4]


def test_large_partitions_become_fragments_of_the_target_size(task: WriteTask) -> None:
    large = replace(task, small_epoch_rows=LARGE, target_rows_per_fragment=4)
    epoch = gathered(large, [batch(range(10))], [batch(range(10, 13))])
    assert sorted(fragment.physical_rows for fragment in epoch.fragments) == [2, 3, 4, 4]
    assert epoch.rows == 13
    assert stored(large, epoch) == list(range(13))


def test_large_and_small_partitions_come_together(task: WriteTask) -> None:
    mixed = replace(task, small_epoch_rows=2)
    epoch = gathered(mixed, [batch([1])], [batch([2, 3, 4])], [batch([5, 6])])
    assert (len(epoch.fragments), epoch.rows) == (2, 6)
    assert stored(mixed, epoch) == [1, 2, 3, 4, 5, 6]


@BOTH
def test_rows_get_the_datasets_columns_in_its_order_and_types(
    task: WriteTask, small_epoch_rows: int
) -> None:
    rows = pa.RecordBatch.from_pydict({"name": ["a"], "id": pa.array([1], pa.int32())})
    each = replace(task, small_epoch_rows=small_epoch_rows)
    stored(each, gathered(each, [rows]))
    assert lance.dataset(task.uri).to_table().to_pylist() == [{"id": 1, "name": "a"}]


@BOTH
def test_a_value_that_does_not_fit_is_refused(task: WriteTask, small_epoch_rows: int) -> None:
    narrow = pa.schema([("id", pa.int8()), ("name", pa.string())])
    each = replace(task, schema=narrow, small_epoch_rows=small_epoch_rows)
    # Lance wraps what a reader raises while it writes; the message goes through.
    refused = RowsRefusedError if small_epoch_rows else (RowsRefusedError, OSError)
    with pytest.raises(refused, match="'id' .*int8"):
        gathered(each, [batch([1000])])


# ------------------------------------------------------------------------------- upserts


def upsert(task: WriteTask, small_epoch_rows: int, *, flagged: bool = False) -> WriteTask:
    return replace(task, merge_keys=("id",), flagged=flagged, small_epoch_rows=small_epoch_rows)


def keys(epoch: CollectedFragments) -> list[dict[str, Any]]:
    assert epoch.keys is not None
    return sorted(epoch.keys.to_pylist(), key=lambda row: row["id"])


@BOTH
def test_an_upsert_carries_its_keys_and_only_those(task: WriteTask, small_epoch_rows: int) -> None:
    each = upsert(task, small_epoch_rows)
    epoch = gathered(each, [batch([2, 1])], [batch([3])])
    assert keys(epoch) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert epoch.deletes == 0
    assert stored(each, epoch) == [1, 2, 3]


def test_keys_of_large_and_small_partitions_come_together(task: WriteTask) -> None:
    epoch = gathered(upsert(task, 1), [batch([1])], [batch([2, 3])])
    assert keys(epoch) == [{"id": 1}, {"id": 2}, {"id": 3}]


@BOTH
def test_a_delete_sends_its_key_and_no_row(task: WriteTask, small_epoch_rows: int) -> None:
    each = upsert(task, small_epoch_rows, flagged=True)
    epoch = gathered(each, [batch([1, 2, 3, 4], **{DELETE_FLAG: [True, False, None, True]})])
    assert keys(epoch) == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]
    assert (epoch.rows, epoch.deletes) == (4, 2)
    assert stored(each, epoch) == [2, 3]


@BOTH
def test_an_epoch_of_deletes_alone_has_keys_and_no_fragment(
    task: WriteTask, small_epoch_rows: int
) -> None:
    each = upsert(task, small_epoch_rows, flagged=True)
    epoch = gathered(each, [batch([1, 2], **{DELETE_FLAG: [True, True]})])
    assert (epoch.fragments, epoch.deletes) == ([], 2)
    assert keys(epoch) == [{"id": 1}, {"id": 2}]


@BOTH
def test_a_deleted_row_may_hold_what_the_dataset_refuses(
    task: WriteTask, small_epoch_rows: int
) -> None:
    strict = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    each = replace(upsert(task, small_epoch_rows, flagged=True), schema=strict)
    epoch = gathered(each, [batch([1], name=[None], **{DELETE_FLAG: [True]})])
    assert (epoch.deletes, epoch.fragments) == (1, [])


@BOTH
@pytest.mark.parametrize("partitions", [[[1, 1]], [[1], [1]]], ids=["within", "across"])
def test_duplicate_merge_key_is_refused_with_an_example(
    task: WriteTask, small_epoch_rows: int, partitions: list[list[int]]
) -> None:
    with pytest.raises(RowsRefusedError, match="1 merge keys .* {'id': 1}"):
        gathered(upsert(task, small_epoch_rows), *([batch(ids)] for ids in partitions))


@BOTH
def test_merge_key_of_a_row_and_a_delete_is_a_duplicate(
    task: WriteTask, small_epoch_rows: int
) -> None:
    each = upsert(task, small_epoch_rows, flagged=True)
    with pytest.raises(RowsRefusedError, match="more than once"):
        gathered(each, [batch([1, 1], **{DELETE_FLAG: [True, False]})])


@BOTH
def test_a_key_that_is_null_is_refused(task: WriteTask, small_epoch_rows: int) -> None:
    with pytest.raises(RowsRefusedError, match=r"merge key \['id'\] is null"):
        gathered(upsert(task, small_epoch_rows), [batch([1, None])])


def test_keys_of_several_columns_are_compared_together(task: WriteTask) -> None:
    each = replace(upsert(task, SMALL), merge_keys=("id", "name"))
    epoch = gathered(each, [batch([1, 1], name=["a", "b"])])
    assert keys(epoch) == [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]
    with pytest.raises(RowsRefusedError, match="more than once"):
        gathered(each, [batch([1, 1], name=["a", "a"])])
