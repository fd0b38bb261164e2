"""`autoCompactEvery` on real local Spark: few fragments, exact rows, and no epoch that is late."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.maintenance import upkeep
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.spark import autocompact
from airflow_provider_lance.spark import sink as sink_module
from airflow_provider_lance.spark.autocompact import AutoCompaction
from airflow_provider_lance.spark.start import trigger_seconds
from tests.support.maintenance import age
from tests.support.processes import wait_for
from tests.support.sparkstream import Stream, orders


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.create()
    return stream


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every compaction up until the event is set: it is as slow as the test likes."""
    opened, compact = threading.Event(), autocompact.compact

    def slow(*arguments: Any, **named: Any) -> Any:
        opened.wait(60)
        return compact(*arguments, **named)

    monkeypatch.setattr(autocompact, "compact", slow)
    yield opened
    opened.set()
    wait_for(
        "the compactions' threads",
        lambda: all(thread.name != "lance-autocompact" for thread in threading.enumerate()),
    )


def rewrites(stream: Stream) -> int:
    dataset = stream.dataset
    found = (dataset.read_transaction(each["version"]) for each in dataset.versions())
    return sum(type(each.operation).__name__ == "Rewrite" for each in found if each)


def test_a_stream_keeps_its_own_fragments_few(stream: Stream) -> None:
    for n in range(23):
        stream.add(orders(n * 10, 10))
    sink = stream.run(autoCompactEvery=5)
    assert sink.totals.epochs == 23
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(230))
    assert rewrites(stream) >= 3
    assert len(stream.dataset.get_fragments()) <= 12
    port = open_dataset(stream.uri)
    owner = decode_query(port.config, "q", port.version).owner
    assert owner is not None
    assert owner.state is OwnerState.RELEASED


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns due after few epochs."""
    monkeypatch.setattr(upkeep, "_FRAGMENTS", 5)
    monkeypatch.setattr(upkeep, "_VERSIONS", 10)
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 12)


@pytest.mark.usefixtures("soon")
def test_by_default_a_stream_looks_after_its_table(stream: Stream) -> None:
    """Bounded runs count together: the table says what is due."""
    for run in range(4):
        for n in range(4):
            stream.add(orders((run * 4 + n) * 10, 10))
        age(stream.uri, 4000)
        sink = stream.run()
        assert not sink.upkeep.why
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(160))
    assert len(stream.dataset.get_fragments()) < 10
    age(stream.uri, 4000)
    stream.add(orders(160, 10))
    stream.run()
    assert min(version["version"] for version in stream.dataset.versions()) > 1


@pytest.mark.usefixtures("soon")
def test_by_default_a_stream_looks_after_its_routes(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    for n in range(14):
        stream.add(orders(n * 10, 10))
    stream.run(createIfMissing=True, routeBy="grp")
    places = list((stream.root / "table.routes").glob("*.lance"))
    assert len(places) == 3
    for place in places:
        assert len(lance.dataset(str(place)).get_fragments()) < 12
    assert sum(lance.dataset(str(place)).count_rows() for place in places) == 140
    assert len(stream.dataset.get_fragments()) < 12


def test_a_run_that_ends_with_its_turn_waits_for_the_compaction(
    stream: Stream, held: threading.Event
) -> None:
    for n in range(4):
        stream.add(orders(n * 10, 10))
    sink = stream.sink(autoCompactEvery=4)
    query = sink.start(stream.read(), availableNow=True)
    sink._compaction.use_interval(60)
    query.awaitTermination()
    assert len(stream.dataset.get_fragments()) == 4
    opener = threading.Timer(0.5, held.set)
    opener.start()
    assert sink.release()
    opener.join()
    assert len(stream.dataset.get_fragments()) == 1
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(40))


def test_the_release_does_not_wait_for_one_that_hangs(
    stream: Stream, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "_COMPACTION_SECONDS", 0.2)
    for n in range(2):
        stream.add(orders(n * 10, 10))
    sink = stream.sink(autoCompactEvery=2)
    sink.start(stream.read(), availableNow=True).awaitTermination()
    assert sink.release()
    assert sink._compaction.running


def test_appends_do_not_wait_for_a_slow_compaction(stream: Stream, held: threading.Event) -> None:
    for n in range(6):
        stream.add(orders(n * 10, 10))
    sink = stream.sink(autoCompactEvery=2)
    query = sink.start(stream.read(), availableNow=True)
    query.awaitTermination()
    assert sink._compaction.running, "since the second epoch"
    assert sink.totals.epochs == 6
    assert rewrites(stream) == 0
    held.set()
    assert sink.release()
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(60))


def test_an_upsert_is_late_by_its_trigger_interval_at_most(
    stream: Stream, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval, epochs = 1.0, 8
    waits: list[float] = []
    give_way = AutoCompaction.give_way

    def timed(compaction: AutoCompaction) -> None:
        began = time.monotonic()
        give_way(compaction)
        waits.append(time.monotonic() - began)

    monkeypatch.setattr(AutoCompaction, "give_way", timed)
    for n in range(epochs):
        stream.add(orders(n * 5, 10))  # half of each epoch's rows replace the epoch's before
    sink = stream.sink(autoCompactEvery=3, outputMode="update", mergeKeys=["id"])
    query = sink.start(stream.read(), processingTime="1 second")
    try:
        wait_for("all epochs", lambda: sink.totals.epochs == epochs, 60)
        assert sink._compaction.running, "slower than all these epochs"
        assert rewrites(stream) == 0
    finally:
        held.set()
        sink.close()
        query.stop()
    assert sink.release()
    assert len(waits) == epochs
    assert sum(waits) < interval + 0.5, "one interval for one compaction, not for each epoch"
    expected = set(range((epochs - 1) * 5 + 10))
    assert Counter(stream.table().column("id").to_pylist()) == Counter(expected)


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [
        ({"availableNow": True}, 0),
        ({"processingTime": "0 seconds"}, 0),
        ({"processingTime": "500 milliseconds"}, 0.5),
        ({"processingTime": "10 seconds"}, 10),
        ({"processingTime": "interval 1 minute 30 seconds"}, 90),
    ],
)
def test_an_interval_is_read_as_spark_reads_it(
    spark: SparkSession, trigger: dict[str, Any], seconds: float
) -> None:
    assert trigger_seconds(spark, trigger) == seconds
