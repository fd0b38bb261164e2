"""Stores that accept a connection and never answer, beside healthy ones on the same page."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.plugins.page.app import create_app
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from tests.support.consumers import leave
from tests.support.maintenance import make
from tests.support.pages import Live, Site, airflow_of_its_own, words

HEALTHY, HANGING = 12, 3


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of a store that accepts every connection and never answers."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))

        def accept() -> None:
            while True:
                try:
                    opened.enter_context(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[list[RegisteredDataset]]:
    with ExitStack() as ends:
        known = []
        for number in range(HEALTHY):
            folder = tmp_path / f"stream{number:02}"
            folder.mkdir()
            live = Live(folder)
            ends.callback(live.end)
            known.append(RegisteredDataset(live.uri, ""))
        yield known


def hang(known: list[RegisteredDataset], count: int) -> None:
    known += [RegisteredDataset(f"s3://bucket/{at}.lance", "silent") for at in range(count)]


def page_threads() -> int:
    return sum(each.name == "lance-page" for each in threading.enumerate())


def test_twelve_healthy_streams_are_shown_within_a_second_beside_three_that_hang(
    tmp_path: Path, streams: list[RegisteredDataset], silent: int, add_connection: Any
) -> None:
    options = {"aws_endpoint": f"http://127.0.0.1:{silent}", "allow_http": "true"}
    secrets = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "x"}
    add_connection("silent", {"storage_options": options | secrets}, conn_type="lance")
    known: list[RegisteredDataset] = []
    hang(known, HANGING)
    known += streams
    before = page_threads()
    with airflow_of_its_own(tmp_path):
        # The first import of pylance is not what is measured.
        assert "1 fine" in words(Site(create_app(lambda: streams[:1])).ask("/").text)
        site = Site(create_app(lambda: known))
        token = site.token()
        begun = time.monotonic()
        shown = words(site.ask("/", token=token).text)
        took = time.monotonic() - begun
        print(f"a page with {HEALTHY} healthy and {HANGING} hanging datasets: {took:.2f} s")
        assert f"{HEALTHY} fine, {HANGING} not seen yet" in shown
        assert took < 1
        assert 'data-refresh="2"' in site.ask("/", token=token).text, "it asks again soon"
        # However often it is loaded, each that hangs costs one thread.
        for _ in range(10):
            begun = time.monotonic()
            assert f"{HEALTHY} fine" in words(site.ask("/", token=token).text)
            assert time.monotonic() - begun < 1
        assert page_threads() - before <= HANGING + 1


def test_dataset_that_no_longer_answers_is_shown_with_its_age(
    tmp_path: Path, streams: list[RegisteredDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_lance.plugins.page import app as app_module
    from airflow_provider_lance.plugins.page import cache as cache_module

    real, answers = app_module.see_dataset, threading.Event()
    answers.set()

    def slow(known: RegisteredDataset) -> Any:
        answers.wait(60)
        return real(known)

    monkeypatch.setattr(app_module, "see_dataset", slow)
    with airflow_of_its_own(tmp_path):
        site = Site(create_app(lambda: streams[:1]))
        token = site.token()
        assert "1 fine" in words(site.ask("/", token=token).text)
        answers.clear()
        monkeypatch.setattr(cache_module, "_STALE", 6.0)
        time.sleep(5.1)  # from now on it is asked again
        shown = words(site.ask("/", token=token).text)
        assert "1 fine" in shown
        assert re.search(r"(5\.\d|6) s ago", shown), shown
        time.sleep(1)
        shown = words(site.ask("/", token=token).text)
        answers.set()
    # No healthy verdict on what is only remembered.
    assert "1 needs you" in shown
    assert "unknown" in shown
    assert re.search(r"no answer for \d s. What was seen \d s ago: watermark 0, committed", shown)


def test_dataset_that_is_only_read_has_an_entry_and_a_page(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    known = [RegisteredDataset(uri, "")]
    with airflow_of_its_own(tmp_path):
        assert "1 empty" in words(Site(create_app(lambda: known)).ask("/").text)
        leave(uri, 1, uri="/data/hourly.lance")
        leave(uri, 1, consumer_id="<b>bold</b>")
        site = Site(create_app(lambda: known))
        listed = site.ask("/")
        assert "1 only read" in words(listed.text)
        assert "no stream writes it; read by <b>bold</b>, hourly" in words(listed.text)
        assert "<b>bold" not in listed.text
        [link] = site.links(listed.text)
        answer = site.ask(link)
        assert answer.status_code == 200
        assert "No stream writes this dataset" in words(answer.text)
        assert "hourly version 1" in words(answer.text)
        # A consumer that is gone needs somebody.
        leave(uri, 1, consumer_id="late", ago=8 * 24 * 3600)
        shown = words(Site(create_app(lambda: known)).ask("/").text)
        assert "1 needs you" in shown
        assert "error LS602" in shown
