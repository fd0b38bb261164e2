"""Streams with the numbers that metrics and alerts are about, and what an exporter says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.supervision.query_state import OperatorState, QueryState
from tests.support.cli import Stream, write_config

__all__ = ["Values", "age", "exporter", "fed", "feed", "scraped", "scraped_when", "values"]

Values = dict[tuple[str, ...], float]


def values(text: str) -> Values:
    """Return what an exporter printed, as Prometheus' own client reads it: by name and labels."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def exporter(*words: str, python: tuple[str, ...]) -> Iterator[str]:
    """Serve metrics in a process of its own; yield the address."""
    command = [*python, "metrics", *words, "--listen", "127.0.0.1:0"]
    with Popen(command, stderr=PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            said = serving.stderr.readline()
            assert said.startswith("serving on http://127.0.0.1:"), said
            yield said.split()[-1]
        finally:
            serving.kill()


def scraped(address: str) -> str:
    with urlopen(address, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def scraped_when(address: str, wanted: str, seconds: float = 60.0) -> str:
    """Return the first answer that holds this text."""
    until = time.monotonic() + seconds
    while wanted not in (text := scraped(address)):
        assert time.monotonic() < until, text
        time.sleep(0.1)
    return text


def fed(folder: Path, name: str, pid: int) -> Stream:
    """Return a stream with two epochs, whose source has nothing that is unread."""
    made = Stream(folder, pid=pid, name=name, uri=str(folder / f"{name}.lance"))
    feed(made, unread=0)
    made.step(2)
    return made


def feed(
    stream: Stream, *, unread: int, late: float = 0.0, unmet: int = 0, quarantined: int = 0
) -> None:
    """Let the next heartbeat say what a Lance source, an expectation and an operator say."""
    end = SourceOffset(version=3, timestamp=1_764_000_000_000_003).to_json()
    behind = {"rowsBehind": unread, "versionsBehind": bool(unread), "secondsBehind": late}
    stream.progress = {
        "inputRowsPerSecond": 12.0,
        "processedRowsPerSecond": 40.0,
        "sources": [{"endOffset": end, "latestOffset": {**end, **behind}}],
    }
    stream.checks = RowChecks({"amount > 0": Met(30, unmet)}, quarantined=quarantined)
    stream.state = QueryState((OperatorState("stateStoreSave", 21, 8416, 2),))
    stream.beat()


def age(stream: Stream, ago: timedelta) -> None:
    """Let the newest epoch have been committed so long ago."""
    when = (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")
    write_config(
        stream.uri,
        lastEpoch=str(stream.next - 1),
        lastEpochTime=when,
        lastEpochVersion=str(stream.version),
    )
