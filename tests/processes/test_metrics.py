"""What arrives at a StatsD server, sent through Airflow's own statistics."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.triggers.task_log import count_restart, gauge_progress
from tests.support.processes import finish, python

# Airflow's optional `statsd` package, as far as Airflow uses it: the same datagrams.
CLIENT = """
import socket


class StatsClient:
    def __init__(self, host, port, prefix, ipv6):
        self._address, self._prefix = (host, port), prefix

    def incr(self, stat, count, rate):
        self._send(f"{stat}:{count}|c")

    def gauge(self, stat, value, rate, delta):
        self._send(f"{stat}:{value}|g")

    def timer(self, stat):
        return None

    def _send(self, text):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(f"{self._prefix}.{text}".encode(), self._address)
"""
TAGS = {"dag_id": "flights_dag", "task_id": "stream"}
TAGGED = "dag_id=flights_dag,task_id=stream,query_id=flights"
IDLE = Heartbeat("2026-01-01T12:00:00+00:00", "running", idle=True)


class Server:
    """A StatsD server on loopback."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def received(self) -> dict[str, Any]:
        """Return what has come since the last call, by name; all of it has been sent before."""
        self._socket.setblocking(False)
        found: dict[str, Any] = {}
        while True:
            try:
                name, _, value = self._socket.recv(4096).decode().partition(":")
            except BlockingIOError:
                return found
            assert name not in found, "sent twice"
            number, kind = value.split("|")
            found[name.removeprefix("airflow.")] = (float(number), kind)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Let Airflow send its metrics here, as its configuration tells it to."""
    (tmp_path / "statsd.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "statsd", raising=False)
    made = Server()
    settings = {
        "STATSD_ON": "True",
        "STATSD_HOST": "127.0.0.1",
        "STATSD_PORT": str(made.port),
        "STATSD_INFLUXDB_ENABLED": "True",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    yield made
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
    sys.modules.pop("statsd", None)
    made.close()


def test_an_idle_stream_has_no_lag(server: Server) -> None:
    gauge_progress("flights", IDLE, 7.0, TAGS)
    assert server.received() == {
        f"lance_stream.lag,{TAGGED}": (0.0, "g"),
        "lance_stream.flights.lag": (0.0, "g"),
    }


def test_how_long_an_epoch_waits_for_its_commit(server: Server) -> None:
    gauge_progress("flights", Heartbeat("", "running", busy=40.0), 2.5, TAGS)
    assert server.received() == {
        f"lance_stream.lag,{TAGGED}": (42.5, "g"),
        "lance_stream.flights.lag": (42.5, "g"),
    }


def committed(ago: timedelta) -> Heartbeat:
    """Return the heartbeat of an idle driver."""
    when = (datetime.now(UTC) - ago).isoformat()
    return Heartbeat.parse({"busySince": None, "sink": {"committedAt": when}})


def test_how_old_the_newest_epoch_is(server: Server) -> None:
    began = time.monotonic()
    gauge_progress("flights", committed(timedelta(seconds=30)), 0.0, TAGS)
    took = time.monotonic() - began
    received = server.received()
    for name in (f"lance_stream.epoch_age,{TAGGED}", "lance_stream.flights.epoch_age"):
        value, kind = received[name]
        assert 30 <= value <= 30.1 + took
        assert kind == "g"


def test_an_epoch_of_a_driver_whose_clock_is_ahead_is_new(server: Server) -> None:
    gauge_progress("flights", committed(timedelta(hours=-1)), 0.0, TAGS)
    assert server.received()["lance_stream.flights.epoch_age"] == (0.0, "g")


@pytest.mark.parametrize("when", ["yesterday", "2026-01-01T12:00:00"])
def test_a_time_that_cannot_be_read_is_no_error(server: Server, when: str) -> None:
    heartbeat = {"busySince": None, "sink": {"committedAt": when}}
    gauge_progress("flights", Heartbeat.parse(heartbeat), 0.0, TAGS)
    received = server.received()
    assert "lance_stream.flights.lag" in received
    assert "lance_stream.flights.epoch_age" not in received


@pytest.mark.parametrize("name", ["behind", "versions_behind", "seconds_behind"])
@pytest.mark.parametrize("value", [12.0, 0.0])
def test_what_the_source_has_ready(server: Server, name: str, value: float) -> None:
    heartbeat = replace(Heartbeat("", "running", idle=True), **{name: value})
    gauge_progress("flights", heartbeat, 0.0, TAGS)
    received = server.received()
    assert received[f"lance_stream.{name},{TAGGED}"] == (value, "g")
    assert received[f"lance_stream.flights.{name}"] == (value, "g")
    assert sum("behind" in each for each in received) == 2


def test_what_the_expectations_found(server: Server) -> None:
    checks = RowChecks({"positive": Met(70), "known": Met(68, 2)}, dropped=1, quarantined=1)
    gauge_progress("flights", replace(IDLE, checks=checks), 0.0, TAGS)
    received = server.received()
    tagged = {
        re.findall("expectation=([a-z]+)", name)[0]: value
        for name, value in received.items()
        if name.startswith("lance_stream.unmet,")
    }
    assert tagged == {"positive": (0.0, "g"), "known": (2.0, "g")}
    for name in ("dropped", "quarantined"):
        assert received[f"lance_stream.{name},{TAGGED}"] == (1.0, "g")
        assert received[f"lance_stream.flights.{name}"] == (1.0, "g")


def test_restarts_are_counted_by_their_cause(server: Server) -> None:
    for state in ("dead", "stalled"):
        count_restart("flights", state, TAGS)
        assert server.received() == {
            f"lance_stream.restarts,{TAGGED},state={state}": (1.0, "c"),
            "lance_stream.flights.restarts": (1.0, "c"),
        }


def test_any_query_id_makes_a_name(server: Server) -> None:
    query_id = "Flights.v2_EU-1"
    gauge_progress(query_id, IDLE, 0.0, {})
    assert f"lance_stream.{query_id}.lag" in server.received()


def test_a_triggerer_sends_them_too(server: Server, tmp_path: Path) -> None:
    """Airflow starts the SDK's statistics in a task's process, and where this module is imported.

    A trigger runs in neither; what the triggerer itself imports makes up for it (Airflow 3.3).
    """
    code = """
import airflow.jobs.triggerer_job_runner
from airflow_provider_lance.triggers.task_log import count_restart
count_restart("flights", "dead", {})
"""
    status, said = finish(
        python("-W", "ignore", "-c", code, environment={"PYTHONPATH": str(tmp_path)})
    )
    assert status == 0, said
    assert server.received()["lance_stream.flights.restarts"] == (1.0, "c")
