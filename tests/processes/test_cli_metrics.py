"""`lance-stream metrics`: what Prometheus reads, and what a store that hangs changes about it."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from airflow_provider_lance.cli.metrics import EXPORTER_METRICS, SHIPPED
from airflow_provider_lance.diagnostics.metrics import METRICS
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.supervision.driver_reports import report_location
from tests.support.cli import Stream, python, typed
from tests.support.consumers import leave
from tests.support.metrics import age, exporter, fed, feed, scraped, scraped_when, values
from tests.support.stores import hanging_store

CLI = (sys.executable, "-m", "airflow_provider_lance.cli")


@pytest.fixture
def orders(tmp_path: Path, process: Popen[bytes]) -> Stream:
    return fed(tmp_path, "orders", process.pid)


def test_a_stream_in_numbers(orders: Stream) -> None:
    feed(orders, unread=70, late=95.0, unmet=3, quarantined=2)
    leave(orders.uri, 2, ago=10)
    ran = typed("metrics", orders.uri, "--once")
    assert (ran.status, ran.err) == (0, "")
    seen = values(ran.out)
    uri, stream = orders.uri, ("orders", orders.uri)
    assert 0 <= seen.pop(("lance_stream_epoch_age_seconds", *stream)) < 60
    assert seen["lance_stream_consumer_seconds_behind", "hourly", uri] >= 0
    assert {name: seen.get(name) for name in numbers(uri)} == numbers(uri)


def numbers(uri: str) -> dict[tuple[str, ...], float]:
    stream = ("orders", uri)
    return {
        ("lance_stream_state", "orders", "running", uri): 1,
        ("lance_stream_worst_severity", *stream): 1,
        ("lance_stream_worst_severity", "", uri): 0,
        ("lance_stream_finding", "LS203", "orders", "info", uri): 1,
        ("lance_stream_watermark_epoch", *stream): 1,
        ("lance_stream_rows_behind", *stream): 70,
        ("lance_stream_versions_behind", *stream): 1,
        ("lance_stream_seconds_behind", *stream): 95,
        ("lance_stream_input_rows_per_second", *stream): 12,
        ("lance_stream_processed_rows_per_second", *stream): 40,
        ("lance_stream_unmet_rows_total", "amount > 0", *stream): 3,
        ("lance_stream_dropped_rows_total", *stream): 0,
        ("lance_stream_quarantined_rows_total", *stream): 2,
        ("lance_stream_state_rows", *stream): 21,
        ("lance_stream_state_bytes", *stream): 8416,
        ("lance_stream_too_late_rows_total", *stream): 2,
        ("lance_stream_dataset_rows", uri): 20,
        ("lance_stream_dataset_fragments", uri): 2,
        ("lance_stream_dataset_queries", uri): 1,
        ("lance_stream_consumer_versions_behind", "hourly", uri): 3,
        ("lance_stream_scrape_success", uri): 1,
        ("lance_stream_scrape_errors_total", uri): 0,
    }


def test_every_sample_has_a_documented_name(orders: Stream) -> None:
    """Also: the numbers of the JSON form are those of the text form."""
    feed(orders, unread=1)
    leave(orders.uri, 2)
    document = typed("metrics", orders.uri, "--once", "-o", "json").document["samples"]
    known = {each.name: set(each.labels) for each in (*METRICS, *EXPORTER_METRICS)}
    assert {each["name"] for each in document} == set(known)
    assert all(set(each["labels"]) == known[each["name"]] for each in document)
    page = (Path(__file__).parents[2] / "docs/how-to/alerts.md").read_text()
    assert [name for name in known if f"`{name}`" not in page] == []


def test_labels_are_escaped(tmp_path: Path, process: Popen[bytes]) -> None:
    folder = tmp_path / 'a "quoted" name, {a="b"}'
    folder.mkdir()
    made = fed(folder, "orders", process.pid)
    seen = values(typed("metrics", made.uri, "--once").out)
    assert seen["lance_stream_dataset_rows", made.uri] == 20


def test_a_dataset_without_an_answer_has_no_numbers_and_fails_the_command(
    orders: Stream, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone.lance")
    ran = typed("metrics", gone, orders.uri, "--once")
    seen = values(ran.out)
    assert ran.status == 3
    assert "no Lance dataset" in ran.err
    assert seen["lance_stream_scrape_success", gone] == 0
    assert seen["lance_stream_scrape_errors_total", gone] == 1
    assert seen["lance_stream_scrape_success", orders.uri] == 1
    assert not any(name != "" and gone in labels for name, *labels in seen if "scrape" not in name)


def test_a_query_that_ended_long_ago_is_left_out(tmp_path: Path, process: Popen[bytes]) -> None:
    made = Stream(tmp_path, pid=process.pid)
    made.step()
    made.committer.release()
    age(made, timedelta(days=8))
    folder = Path(report_location(str(made.checkpoint)))
    assert open_files(str(folder)).names("")
    for each in sorted(folder.rglob("*"), reverse=True):
        each.unlink() if each.is_file() else each.rmdir()
    wanted = ("lance_stream_watermark_epoch", "orders", made.uri)
    few = values(typed("metrics", made.uri, "--once").out)
    assert wanted not in few
    assert few["lance_stream_dataset_queries", made.uri] == 1
    assert wanted in values(typed("metrics", made.uri, "--once", "--all-queries").out)


def test_a_store_that_hangs_delays_no_other_dataset(orders: Stream, tmp_path: Path) -> None:
    with hanging_store() as endpoint:
        options = tmp_path / "options.json"
        options.write_text(
            json.dumps(
                {
                    "endpoint": endpoint,
                    "allow_http": "true",
                    "region": "us-east-1",
                    "access_key_id": "a-secret-key-id",
                    "secret_access_key": "a-secret-that-must-not-be-seen",
                }
            )
        )
        slow = "s3://bucket/slow.lance"
        words = (slow, orders.uri, "--storage-options-file", str(options))
        began = time.monotonic()
        ran = python(
            "-m", "airflow_provider_lance.cli", "metrics", *words, "--once", "--timeout", "4"
        )
        assert time.monotonic() - began < 25
        assert ran.status == 3
        seen = values(ran.out)
        assert seen["lance_stream_scrape_success", slow] == 0
        assert seen["lance_stream_dataset_rows", orders.uri] == 20
        with exporter(*words, "--interval", "1", "--timeout", "1", python=CLI) as address:
            scraped_when(address, "lance_stream_dataset_rows{")
            orders.step(1)
            scraped_when(address, f'lance_stream_dataset_rows{{uri="{orders.uri}"}} 30.0')
            time.sleep(2)
            began = time.monotonic()
            text = scraped(address)
            assert time.monotonic() - began < 1
        seen = values(text)
        assert seen["lance_stream_dataset_rows", orders.uri] == 30
        assert seen["lance_stream_scrape_success", orders.uri] == 1
        assert seen["lance_stream_scrape_success", slow] == 0
        assert seen["lance_stream_scrape_age_seconds", slow] > 2
        assert "a-secret" not in text + ran.out + ran.err


def test_what_is_stale_is_left_out(orders: Stream, tmp_path: Path) -> None:
    uri = Path(orders.uri)
    with exporter(str(uri), "--interval", "3", "--timeout", "1", python=CLI) as address:
        scraped_when(address, "lance_stream_dataset_rows{")
        uri.rename(tmp_path / "elsewhere.lance")
        text = scraped_when(address, f'lance_stream_scrape_success{{uri="{uri}"}} 0.0')
        assert "lance_stream_dataset_rows{" in text, "the numbers of before stay for a while"
        time.sleep(9)
        assert "lance_stream_dataset_rows{" not in scraped(address)
        (tmp_path / "elsewhere.lance").rename(uri)
        text = scraped_when(address, f'lance_stream_scrape_success{{uri="{uri}"}} 1.0')
    assert values(text)["lance_stream_scrape_errors_total", str(uri)] >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name at least one dataset"),
        (("/data/t.lance", "--listen", "nowhere"), "write HOST:PORT"),
        (("/data/t.lance", "--listen", "127.0.0.1:99999"), "write HOST:PORT"),
    ],
)
def test_what_cannot_be_served_is_refused(words: tuple[str, ...], said: str) -> None:
    ran = typed("metrics", *words)
    assert ran.status == 2
    assert said in ran.err


def test_without_the_library_it_says_what_to_install(
    orders: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "prometheus_client", missing)
    ran = typed("metrics", orders.uri, "--once")
    assert ran.status == 2
    assert "airflow-provider-lance[metrics]" in ran.err
    assert typed("metrics", orders.uri, "--once", "-o", "json").status == 0


@pytest.mark.parametrize("what", SHIPPED)
def test_the_files_are_printed_as_they_are(what: str) -> None:
    import airflow_provider_lance

    folder = Path(airflow_provider_lance.__file__).parent / "alerts"
    ran = typed("metrics", "--print", what)
    assert ran.status == 0
    assert ran.out == (folder / SHIPPED[what]).read_text()


def test_the_commands_of_the_page_can_be_typed(orders: Stream, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/alerts.md").read_text()
    commands = re.findall(r"^lance-stream (metrics .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = command.partition(" >")[0].split()
        for name in ("orders", "clicks"):
            words = [each.replace(f"/data/lance/{name}.lance", orders.uri) for each in words]
        assert typed(*words, *([] if "--print" in words else ["--once"])).status == 0
