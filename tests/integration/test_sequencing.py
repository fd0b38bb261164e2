"""Records with an order on real local Spark: doubled, late, deleted, truncated, replayed."""

from __future__ import annotations

import ast
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import (
    PreconditionError,
    RowsChangedError,
    RowsRefusedError,
    SchemaMismatchError,
    SpecError,
)
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.port import Upsert
from airflow_provider_lance.protocol.sides import DELETED_AT, EXPIRES_AT
from airflow_provider_lance.repair.feed import feed_rows
from airflow_provider_lance.repair.feed_plan import Mended
from tests.support.lance_stream import read
from tests.support.processes import wait_for
from tests.support.sparkstream import Stream

TEXTS = [(name, pa.string()) for name in ("a", "b", "op")]
CHANGES = pa.schema([("id", pa.int64()), ("lsn", pa.int64()), *TEXTS])
DDL = "id BIGINT, lsn BIGINT, a STRING, b STRING, op STRING"
OPTIONS: dict[str, Any] = {
    "outputMode": "update",
    "mergeKeys": "id",
    "sequenceBy": "lsn",
    "deleteWhen": "op = 'd'",
    "exceptColumns": "op",
    "createIfMissing": True,
}
TRUNCATING = OPTIONS | {"truncateWhen": "op = 't'"}
BOTH = pytest.mark.parametrize("small_epoch_rows", [20_000, 0], ids=["driver", "executors"])

Change = tuple[int | None, int | None, str | None, str | None, str]


def changes(*rows: Change) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(CHANGES.names, row, strict=True)) for row in rows], CHANGES
    )


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path, ddl=DDL)


def rows(stream: Stream) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in stream.table().to_pylist())


def tombstones(stream: Stream) -> list[tuple[Any, ...]]:
    table = lance.dataset(stream.uri.replace("table.lance", "table.tombstones.lance")).to_table()
    assert table.column_names == ["id", "lsn", DELETED_AT, EXPIRES_AT]
    days = pa.compute.subtract(table[EXPIRES_AT], table[DELETED_AT]).to_pylist()
    assert {each.days for each in days} <= {7}
    return [tuple(row.values())[:2] for row in table.to_pylist()]


@BOTH
def test_the_newest_record_of_a_key_counts_within_an_epoch_and_across_them(
    stream: Stream, small_epoch_rows: int
) -> None:
    stream.add(changes((1, 5, "new", "x", "u"), (1, 3, "old", "x", "u"), (2, 4, "two", "x", "u")))
    stream.add(changes((1, 4, "late", "x", "u"), (2, 6, None, None, "d"), (3, 7, "3", "x", "u")))
    stream.add(changes((2, 5, "dead", "x", "u"), (3, 7, "tie", "x", "u"), (4, 8, "4", "x", "u")))
    sink = stream.run(smallEpochRows=small_epoch_rows, **OPTIONS)
    assert rows(stream) == [(1, 5, "new", "x"), (3, 7, "3", "x"), (4, 8, "4", "x")]
    beside = lance.dataset(stream.uri.replace("table.lance", "table.tombstones.lance"))
    assert [each.field_names for each in beside.describe_indices()] == [["id"]]
    assert tombstones(stream) == [(2, 6)]
    stamps = stream.epochs()
    assert [(s.rows, s.deletes, s.checks.late, s.checks.superseded) for s in stamps] == [
        (2, 0, 0, 1),
        (2, 1, 1, 0),
        (1, 0, 2, 0),
    ]
    assert sink.totals.checks.late == 3
    assert not stream.table().schema.field("id").nullable


@BOTH
def test_a_truncate_deletes_what_is_not_newer_and_is_remembered(
    stream: Stream, small_epoch_rows: int
) -> None:
    stream.add(changes((1, 1, "1", "x", "u"), (2, 9, "2", "x", "u"), (3, 3, "3", "x", "u")))
    stream.add(changes((None, 5, None, None, "t"), (4, 6, "4", "x", "u"), (5, 5, "5", "x", "u")))
    stream.add(changes((3, 4, "late", "x", "u"), (None, 2, None, None, "t")))
    stream.run(smallEpochRows=small_epoch_rows, **TRUNCATING)
    assert rows(stream) == [(2, 9, "2", "x"), (4, 6, "4", "x")]
    assert tombstones(stream) == [(None, 5)]
    stamps = stream.epochs()
    assert [(s.rows, s.deletes, s.checks.late, s.checks.superseded) for s in stamps] == [
        (3, 0, 0, 0),
        (2, 1, 0, 1),
        (0, 0, 2, 0),
    ]


@BOTH
def test_a_null_keeps_the_value_that_is_stored(stream: Stream, small_epoch_rows: int) -> None:
    stream.add(changes((1, 1, "a", "b", "u"), (2, 1, "a", None, "u")))
    stream.add(changes((1, 3, None, "b3", "u"), (1, 2, "a2", None, "u"), (2, 2, None, "b", "u")))
    stream.add(changes((1, 2, "late", "late", "u"), (2, 4, None, "b4", "u"), (2, 3, "x", "x", "d")))
    stream.run(smallEpochRows=small_epoch_rows, ignoreNullUpdates=True, **OPTIONS)
    assert rows(stream) == [(1, 3, "a2", "b3"), (2, 4, None, "b4")]


@BOTH
def test_an_epoch_that_is_repeated_changes_nothing(stream: Stream, small_epoch_rows: int) -> None:
    epochs = [
        changes((1, 1, "1", "x", "u"), (2, 1, "2", "x", "u")),
        changes((1, 2, None, None, "d"), (2, 2, "2b", "x", "u"), (None, 1, None, None, "t")),
    ]
    for each in epochs:
        stream.add(each)
    died: list[Failpoint] = []

    def die(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED and sink.epoch_in_progress == 1:
            died.append(step)
            if len(died) == 2:  # the tombstones of the epoch have landed, the table has not
                raise RuntimeError("killed")

    options = TRUNCATING | {"smallEpochRows": small_epoch_rows}
    sink = stream.sink(**options)
    sink._on_step = die
    with pytest.raises(StreamingQueryException, match="killed"):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert rows(stream) == [(1, 1, "1", "x"), (2, 1, "2", "x")]
    assert sorted(tombstones(stream), key=str) == [(1, 2), (None, 1)]
    stream.run(**options)
    assert rows(stream) == [(2, 2, "2b", "x")]
    stream.forget_last_commit()
    stream.run(**options)
    for each in epochs:  # the source repeats itself
        stream.add(each)
    stream.run(**options)
    assert rows(stream) == [(2, 2, "2b", "x")]
    assert sorted(tombstones(stream), key=str) == [(1, 2), (None, 1)]


def test_an_epoch_is_compared_again_if_others_changed_rows_meanwhile(stream: Stream) -> None:
    stream.add(changes((1, 1, "1", "x", "u"), (2, 1, "2", "x", "u")))
    stream.run(**OPTIONS)
    stream.add(changes((1, 5, "ours", "x", "u"), (2, 5, "ours", "x", "u")))
    sink = stream.sink(**OPTIONS)
    met: list[int] = []

    def interfere(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED and not met:
            met.append(1)
            merge = lance.dataset(stream.uri).merge_insert("id").when_matched_update_all()
            merge.execute(pa.table([[1], [9], ["theirs"], ["x"]], stream.table().schema))

    sink._on_step = interfere
    sink.start(stream.read(), availableNow=True).awaitTermination()
    sink.release()
    assert met
    assert rows(stream) == [(1, 9, "theirs", "x"), (2, 5, "ours", "x")]
    assert stream.epochs()[-1].checks.late == 1


def test_what_has_no_order_is_refused_by_name(stream: Stream) -> None:
    stream.add(changes((1, 1, "1", "x", "u"), (1, 2, "2", "x", "u")))
    plain = OPTIONS | {"sequenceBy": (), "exceptColumns": "op", "deleteWhen": None}
    with pytest.raises(StreamingQueryException, match="Set sequenceBy to the columns"):
        stream.run(**plain)
    with pytest.raises(SchemaMismatchError, match=re.escape("sequenceBy ['lsm']")):
        stream.run(**OPTIONS | {"sequenceBy": "lsm"})
    with pytest.raises(SchemaMismatchError, match=re.escape("exceptColumns ['up']")):
        stream.run(**OPTIONS | {"exceptColumns": "up"})
    with pytest.raises(SpecError, match="deleteWhen .*non-deterministic"):
        stream.run(**OPTIONS | {"deleteWhen": "rand() > 0.5"})
    df = stream.read().withColumn("lsn", F.array("lsn"))
    with pytest.raises(SchemaMismatchError, match="'lsn' is list"):
        stream.run(df, **OPTIONS | {"uri": stream.uri + "2"})
    sink = stream.sink(**OPTIONS)
    stream.add(changes((1, None, "1", "x", "u")))
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, RowsRefusedError)
    assert "'lsn' is null or NaN in 1 rows" in str(sink.error)


def test_others_who_never_stop_changing_rows_end_the_query_by_name(stream: Stream) -> None:
    stream.add(changes((1, 1, "1", "x", "u")))
    stream.run(**OPTIONS)
    stream.add(changes((1, 5, "ours", "x", "u")))
    times: list[int] = []

    def change(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED and sink.epoch_in_progress == 1:
            times.append(len(times) + 2)
            lance.dataset(stream.uri).update({"lsn": str(times[-1])}, "id = 1")

    sink = stream.sink(**OPTIONS)
    sink._on_step = change
    with pytest.raises(StreamingQueryException, match="RowsChangedError"):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, RowsChangedError)
    assert len(times) == 12
    assert rows(stream) == [(1, times[-1], "1", "x")]
    lance.dataset(stream.uri).update({"lsn": "2"}, "id = 1")
    stream.run(**OPTIONS)
    assert rows(stream) == [(1, 5, "ours", "x")]


def test_maintenance_of_the_table_forgets_tombstones_and_covers_them_by_their_index(
    stream: Stream,
) -> None:
    for lsn in range(3):
        stream.add(changes((lsn, lsn, None, None, "d")))
    stream.run(tombstoneRetention=1, **OPTIONS)
    uri = stream.uri.replace("table.lance", "table.tombstones.lance")
    latest = max(lance.dataset(uri).to_table()[EXPIRES_AT].to_pylist())
    wait_for("the tombstones' end", lambda: datetime.now(UTC) > latest)
    report = maintain(open_dataset(stream.uri), MaintenanceOptions())
    assert [each.uri for each in report.sides] == [uri]
    side = lance.dataset(uri)
    assert side.to_table()["id"].to_pylist() == [2], "only the newest epoch's is left"
    assert [each.num_rows_indexed for each in side.describe_indices()] == [1]


@BOTH
def test_a_record_without_a_sequence_goes_to_the_quarantine_if_refused_rows_do(
    stream: Stream, small_epoch_rows: int
) -> None:
    stream.add(changes((1, 1, "1", "x", "u"), (2, 2, "2", "x", "u")))
    stream.add(changes((1, None, "?", "x", "u"), (2, None, None, None, "d"), (3, 3, "3", "x", "u")))
    stream.run(smallEpochRows=small_epoch_rows, onRefusedRow="quarantine", **OPTIONS)
    assert rows(stream) == [(1, 1, "1", "x"), (2, 2, "2", "x"), (3, 3, "3", "x")]
    aside = lance.dataset(stream.uri.replace("table.lance", "table.quarantine.lance")).to_table()
    assert aside["reason"].to_pylist() == ["sequence 'lsn' is null or NaN"] * 2
    assert stream.epochs()[1].checks.quarantined == 2


def test_a_change_feed_gives_the_same_table_also_where_a_version_overwrites_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/cdc.md"
    example = page.read_text().split("## A change feed as the input")[1].split("```")[1]
    call = ast.parse(example.removeprefix("python\n")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    given = {each.arg: ast.literal_eval(each.value) for each in call.value.keywords}
    path = tmp_path / "orders.lance"
    lance.write_dataset(
        pa.table({"id": [1, 2, 3], "v": [1, 2, 3]}), path, enable_stable_row_ids=True
    )
    options = {"outputMode": given["output_mode"], "createIfMissing": True} | given["sink_options"]
    stream = Stream(spark, tmp_path / "copy")

    def run() -> None:
        source = read(spark, path, readChangeFeed="true")
        source.createOrReplaceTempView("feed")
        stream.run(spark.sql(given["sql"].replace("FROM source", "FROM feed")), **options)

    run()
    merge = lance.dataset(path).merge_insert("id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(pa.table({"id": [3, 4], "v": [30, 40]}))
    lance.dataset(path).delete("id = 1")
    lance.write_dataset(pa.table({"id": [2, 4, 5], "v": [200, 40, 500]}), path, mode="overwrite")
    lance.dataset(path).update({"v": "v + 1"}, "id = 5")
    run()  # all of these versions in one epoch
    found = stream.dataset.to_table(columns=["id", "v"]).sort_by("id").to_pydict()
    assert found == {"id": [2, 4, 5], "v": [200, 40, 501]}


def test_two_queries_that_insert_one_new_key_conflict(stream: Stream) -> None:
    stream.add(changes((1, 1, "1", "x", "u")))
    stream.run(**OPTIONS)
    stream.add(changes((7, 1, "first", "x", "u")))
    sink = stream.sink(**OPTIONS)
    met: list[int] = []

    def interfere(step: Failpoint) -> None:
        # After the look at the newest version: the commit itself must conflict.
        if step is Failpoint.COMMIT_CHECKED and not met:
            met.append(1)
            real = LanceDatasetPort.commit

            def late(port: LanceDatasetPort, change: Any, properties: Any = None) -> Any:
                if isinstance(change, Upsert) and len(met) == 1:
                    met.append(2)
                    stamped = port.dataset.to_table(filter="id = 1")
                    other = stamped.set_column(0, stamped.schema.field("id"), [[7]])
                    fragments = lance.fragment.write_fragments(other, port.dataset)
                    real(port, Upsert(fragments, other.select(["id"]), ("id",)), {})
                return real(port, change, properties)

            patch.setattr(LanceDatasetPort, "commit", late)

    sink._on_step = interfere
    with pytest.MonkeyPatch.context() as patch:
        sink.start(stream.read(), availableNow=True).awaitTermination()
    sink.release()
    assert met == [1, 2]
    assert [row[0] for row in rows(stream)] == [1, 7]


@BOTH
def test_a_refused_record_goes_to_the_quarantine_and_is_not_fed_past_the_order(
    stream: Stream, small_epoch_rows: int
) -> None:
    named = [{"name": "named", "condition": "a IS NOT NULL OR op = 'd'", "action": "quarantine"}]
    options = OPTIONS | {"onRefusedRow": "quarantine", "expectations": named}
    stream.add(
        changes(
            (1, 1, "first", "x", "u"),
            (1, 3, None, "x", "u"),
            (None, 4, "keyless", "x", "u"),
            (2, 5, "two", "x", "u"),
            (2, 6, None, None, "d"),
        )
    )
    stream.run(smallEpochRows=small_epoch_rows, **options)
    assert rows(stream) == [(1, 1, "first", "x")]
    assert tombstones(stream) == [(2, 6)]
    (stamp,) = stream.epochs()
    checks = stamp.checks
    assert stamp.rows + checks.quarantined + checks.superseded + checks.late == 5
    assert checks.quarantined == 2
    place = stream.uri.replace("table.lance", "table.quarantine.lance")
    found = lance.dataset(place).to_table().to_pylist()
    assert {row["mode"] for row in found} == {"sequenced"}
    mended = [Mended(row["id"], json.loads(row["row"])) for row in found]
    with pytest.raises(PreconditionError, match="sequenced.*correct them in the source"):
        feed_rows(open_dataset(stream.uri), open_dataset(place), "q", mended)
