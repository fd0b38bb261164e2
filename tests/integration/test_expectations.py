"""Expectations on real local Spark: what lands, what is counted, what is refused at the start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import RowsRefusedError, SpecError
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from tests.support.sparkstream import Stream, orders

FIRST = {"name": "first_ten", "condition": "id < 10", "action": "drop"}
SMALL = {"name": "small", "condition": "amount <= 3", "action": "warn"}
BOTH = pytest.mark.parametrize("small_epoch_rows", [20_000, 0], ids=["driver", "executors"])


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.create()
    return stream


@BOTH
def test_rows_that_do_not_meet_an_expectation_are_counted_and_dropped(
    stream: Stream, small_epoch_rows: int
) -> None:
    for first in (0, 5, 100, 8):
        stream.add(orders(first, 6))
    sink = stream.run(expectations=[FIRST, SMALL], smallEpochRows=small_epoch_rows)
    landed = [*range(6), *range(5, 10), 8, 9]
    assert sorted(stream.table().column("id").to_pylist()) == sorted(landed)
    epochs = stream.epochs()
    assert [stamp.rows for stamp in epochs] == [6, 5, 0, 2]
    assert [stamp.checks.dropped for stamp in epochs] == [0, 1, 6, 4]
    assert all(stamp.rows + stamp.checks.dropped == 6 for stamp in epochs)
    assert [stamp.checks.expectations["first_ten"] for stamp in epochs] == [
        Met(6, 0),
        Met(5, 1),
        Met(0, 6),
        Met(2, 4),
    ]
    assert [stamp.checks.expectations["small"] for stamp in epochs] == [
        Met(6, 0),
        Met(2, 4),
        Met(0, 6),
        Met(0, 6),
    ]
    total = RowChecks()
    for stamp in epochs:
        total += stamp.checks
    assert sink.totals.checks == total
    assert sink.totals.rows == 13


def test_an_epoch_that_was_dropped_leaves_its_counts_once(stream: Stream) -> None:
    stream.add(orders(100, 6))
    stream.run(expectations=[FIRST])
    stream.forget_last_commit()
    stream.add(orders(0, 6))
    stream.run(expectations=[FIRST])
    assert [(s.epoch_id, s.rows, s.checks.dropped) for s in stream.epochs()] == [
        (0, 0, 6),
        (1, 6, 0),
    ]


def test_an_upsert_of_which_all_rows_were_dropped_leaves_its_counts(stream: Stream) -> None:
    options: dict[str, Any] = {"outputMode": "update", "mergeKeys": "id", "expectations": [FIRST]}
    for first in (0, 100, 4):
        stream.add(orders(first, 6))
    stream.run(**options)
    assert sorted(stream.table().column("id").to_pylist()) == list(range(10))
    assert [(s.mode, s.rows, s.checks.dropped) for s in stream.epochs()] == [
        ("update", 6, 0),
        ("update", 0, 6),
        ("update", 6, 0),
    ]


def test_a_complete_result_whose_rows_were_all_dropped_empties_the_table(stream: Stream) -> None:
    stream.add(orders(0, 6))
    counted = (
        stream.read()
        .groupBy("id")
        .agg(F.first("grp").alias("grp"), F.sum("amount").alias("amount"))
    )
    stream.run(counted, outputMode="complete", expectations=[FIRST])
    assert stream.dataset.count_rows() == 6
    stream.run(counted, outputMode="complete")
    stream.add(orders(6, 1))
    none = FIRST | {"condition": "id < 0"}
    stream.run(counted, outputMode="complete", expectations=[none])
    assert stream.dataset.count_rows() == 0
    assert stream.epochs()[-1].checks == RowChecks({"first_ten": Met(0, 7)}, dropped=7)


def test_a_condition_may_read_a_column_that_the_dataset_does_not_have(stream: Stream) -> None:
    stream.add(orders(0, 6))
    df = stream.read().withColumn("op", F.expr("if(id = 3, 'x', null)"))
    unknown = {"name": "known", "condition": "op IS NULL", "action": "drop"}
    stream.run(df, expectations=[unknown])
    assert sorted(stream.table().column("id").to_pylist()) == [0, 1, 2, 4, 5]


@BOTH
def test_the_action_fail_ends_the_query_and_nothing_lands(
    stream: Stream, small_epoch_rows: int
) -> None:
    stream.add(orders(5, 6))
    sink = stream.sink(expectations=[FIRST | {"action": "fail"}], smallEpochRows=small_epoch_rows)
    with pytest.raises(StreamingQueryException, match=r"'first_ten' \(id < 10\)"):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, RowsRefusedError)
    assert stream.dataset.count_rows() == 0


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("idd > 0", "cannot be read.*idd"),
        ("id >", "cannot be read"),
        ("id + 1", "must be a boolean condition, it is bigint"),
        ("rand() < 0.5", "non-deterministic"),
        ("uuid() > grp", "non-deterministic"),
        ("amount < unix_timestamp(current_timestamp())", "reads the clock"),
        ("grp = current_user()", "reads the clock or the session"),
        ("id IN (SELECT id FROM range(3))", "reads other tables"),
        ("sum(id) > 0", "more than one row|cannot be read"),
        ("row_number() OVER (ORDER BY id) < 3", "more than one row|cannot be read"),
        ("explode(array(true, false))", "more than one row|cannot be read"),
    ],
)
def test_a_condition_that_a_replay_may_not_repeat_is_refused_at_the_start(
    stream: Stream, condition: str, said: str
) -> None:
    sink = stream.sink(expectations=[FIRST | {"condition": condition}])
    with pytest.raises(SpecError, match="expectations: the condition of 'first_ten'") as raised:
        sink.start(stream.read(), availableNow=True)
    assert re.search(said, str(raised.value))
