"""The shipped alert rules and dashboard, evaluated by Prometheus' engine on exported metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

import lance
import pytest
import yaml

import airflow_provider_lance
from airflow_provider_lance.cli.metrics import EXPORTER_METRICS, SHIPPED
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.metrics import METRICS
from tests.support.cli import Stream, typed
from tests.support.consumers import leave
from tests.support.metrics import age, fed, feed
from tests.support.promql import Evaluated, evaluate

FOLDER = Path(airflow_provider_lance.__file__).parent / "alerts"
RULES = (FOLDER / SHIPPED["rules"]).read_text()
DASHBOARD: dict[str, Any] = json.loads((FOLDER / SHIPPED["dashboard"]).read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
NAMES = {each.name for each in (*METRICS, *EXPORTER_METRICS)}
STEP, BEGIN = 30, 1_800_000_000
HOUR = 3600

Evaluate = Callable[..., Evaluated]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("promql")


def scrape(*uris: str) -> str:
    """Return what the exporter prints now."""
    return typed("metrics", *uris, "--once").out


def lasting(*phases: tuple[str, int]) -> dict[int, str]:
    """Return scrapes every 30 s: each text for so many seconds."""
    made: dict[int, str] = {}
    for text, seconds in phases:
        for _ in range(seconds // STEP):
            made[BEGIN + STEP * len(made)] = text
    return made


def firing(engine: Path, scrapes: dict[int, str], at: int | None = None) -> dict[str, Any]:
    """Return the labels of the alerts that fire at the last scrape."""
    when = max(scrapes) if at is None else at
    found = evaluate(engine, scrapes, at=when, queries=[], rules=RULES).firing
    return {name: [labels for labels, _ in each] for name, each in found.items() if each}


@pytest.fixture
def orders(tmp_path: Path, process: Popen[bytes]) -> Stream:
    return fed(tmp_path, "orders", process.pid)


def test_the_files_name_only_metrics_that_there_are() -> None:
    """And each label in a text of an alert is one that its expression keeps, or Prometheus' own."""
    groups = yaml.safe_load(RULES)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"][1:]]
    for expression in (*EXPRESSIONS, *variables, *(rule["expr"] for rule in rules)):
        named = set(re.findall(r"lance_stream_\w+", expression))
        assert named, expression
        assert named <= NAMES
    assert len({rule["alert"] for rule in rules}) == len(rules)
    severities = {each.label for each in Severity}
    assert {rule["labels"]["severity"] for rule in rules} <= severities
    for text in re.findall(r'severity="(\w+)"', RULES):
        assert text in severities
    for variable in re.findall(r"\$(\w+)", " ".join(EXPRESSIONS)):
        assert variable in {"uri", "query_id", "__rate_interval"}


@pytest.mark.slow
def test_every_panel_of_the_dashboard_shows_what_was_exported(engine: Path, orders: Stream) -> None:
    age(orders, timedelta(minutes=20))
    leave(orders.uri, 2, ago=10)
    lance.dataset(orders.uri).update_config({"lance.auto_cleanup.interval": "20"})
    phases = []
    for count in (1, 3):
        feed(orders, unread=70 * count, late=95.0, unmet=count, quarantined=count)
        phases.append((scrape(orders.uri), 5 * 60))
    scrapes = lasting(*phases)
    expressions = [
        each.replace("$uri", ".*").replace("$query_id", ".*").replace("$__rate_interval", "4m")
        for each in EXPRESSIONS
    ]
    at = BEGIN + 6 * 60
    found = evaluate(engine, scrapes, at=at, queries=expressions).queries
    shown = dict(zip(EXPRESSIONS, found, strict=True))
    assert [each for each, values in shown.items() if not values] == []
    [(labels, _)] = next(v for e, v in shown.items() if "lance_stream_finding" in e)
    assert (labels["code"], labels["severity"]) == ("LS401", "warning")
    [(_, need)] = next(v for e, v in shown.items() if "worst_severity" in e)
    assert need == 0
    [(labels, quarantined)] = next(v for e, v in shown.items() if "quarantined" in e)
    assert labels["query_id"] == "orders"
    assert quarantined > 0


@pytest.mark.slow
def test_a_healthy_stream_fires_nothing(engine: Path, orders: Stream) -> None:
    assert firing(engine, lasting((scrape(orders.uri), 2 * HOUR))) == {}


@pytest.mark.slow
def test_a_driver_that_is_gone(engine: Path, orders: Stream, process: Popen[bytes]) -> None:
    healthy = scrape(orders.uri)
    process.kill()
    process.wait()
    broken = scrape(orders.uri)
    one = {"uri": orders.uri, "query_id": "orders", "code": "LS102", "severity": "critical"}
    assert firing(engine, lasting((healthy, 300), (broken, 60))) == {}, "not for so short a time"
    assert firing(engine, lasting((healthy, 300), (broken, 300))) == {"LanceStreamStopped": [one]}
    assert firing(engine, lasting((broken, 300), (healthy, 30))) == {}, "over at once"
    query = ["count(max by (uri, query_id) (lance_stream_worst_severity) >= 3)"]
    [[(_, need)]] = evaluate(engine, lasting((broken, 30)), at=BEGIN, queries=query).queries
    assert need == 1


@pytest.mark.slow
def test_rows_that_are_lost(engine: Path, orders: Stream) -> None:
    """Spark's log is ahead of the dataset: an older version was restored."""
    orders.committer.release()
    lance.dataset(orders.uri, version=3).restore()
    fired = firing(engine, lasting((scrape(orders.uri), STEP)))
    assert {each["severity"] for each in fired["LanceStreamLosesRows"]} == {"critical"}
    assert {each["query_id"] for each in fired["LanceStreamLosesRows"]} == {"orders"}


@pytest.mark.slow
def test_rows_that_wait(engine: Path, orders: Stream) -> None:
    age(orders, timedelta(minutes=30))
    idle = scrape(orders.uri)
    feed(orders, unread=70, late=95.0)
    late = scrape(orders.uri)
    assert firing(engine, lasting((idle, HOUR))) == {}, "there is nothing to read"
    fired = firing(engine, lasting((idle, 600), (late, 600)))
    assert [each["query_id"] for each in fired["LanceStreamNotFresh"]] == ["orders"]


@pytest.mark.slow
def test_a_stream_that_falls_behind(engine: Path, orders: Stream) -> None:
    def grown(step: int) -> str:
        feed(orders, unread=10 + step)
        return scrape(orders.uri)

    growing = [(grown(step), 5 * 60) for step in range(15)]
    assert "LanceStreamFallsBehind" in firing(engine, lasting(*growing))
    assert firing(engine, lasting(*reversed(growing))) == {}, "it catches up"


@pytest.mark.slow
def test_rows_in_the_quarantine(engine: Path, orders: Stream) -> None:
    feed(orders, unread=0, quarantined=5)
    first = scrape(orders.uri)
    feed(orders, unread=0, quarantined=9)
    second = scrape(orders.uri)
    feed(orders, unread=0, quarantined=0)
    restarted = scrape(orders.uri)
    assert firing(engine, lasting((first, HOUR))) == {}, "not for those of long ago"
    fired = firing(engine, lasting((first, 300), (second, 300)))
    assert list(fired) == ["LanceStreamRowsNotLanded"]
    assert firing(engine, lasting((second, 300), (restarted, 300))) == {}, "a new driver's count"


@pytest.mark.slow
def test_what_cannot_be_read(engine: Path, orders: Stream, tmp_path: Path) -> None:
    healthy = scrape(orders.uri)
    Path(orders.uri).rename(tmp_path / "elsewhere.lance")
    gone = scrape(orders.uri)
    assert firing(engine, lasting((healthy, 300), (gone, 600))) == {
        "LanceDatasetUnreadable": [{"uri": orders.uri, "severity": "critical"}]
    }
    fired = firing(engine, lasting((healthy, 300), ("", 600)))
    assert list(fired) == ["LanceMetricsAbsent"]
