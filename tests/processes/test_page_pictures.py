"""The page with fifteen streams and with one day of history, looked at in a real browser.

With ``LANCE_DOC_IMAGES=docs/images`` the pictures of the documentation are taken again, and with
``LANCE_PAGE_PICTURES=FOLDER`` one of each page in both themes and at 420 pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from math import pi, sin
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.plugins.page.app import create_app
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from airflow_provider_lance.supervision.driver_reports import write_trend
from tests.support.browser import Browser, find_chromium
from tests.support.pages import Live, Site, airflow_of_its_own
from tests.support.supervised import QUERY, killed

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium on PATH: apt-get install chromium"
    ),
]

NAMES = (
    *("returns", "baggage", "bookings", "check_ins", "crews", "delays", "fares", "fuel"),
    *("gates", "lounges", "meals", "orders", "payments", "seats", "weather"),
)
LOST = 2

PICTURES = {
    "list": "streams-page.png",
    "broken": "stream-broken.png",
    "healthy": "stream-page.png",
}
RENAME = """{{
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    texts.currentNode.data = texts.currentNode.data.replaceAll({folder!r}, "/data/lance");
}}"""


def day(live: Live) -> None:
    """Leave the reports of one day: a point every five minutes, of two launches."""
    now, read = datetime.now(UTC), 0.0
    for number, (first, last) in enumerate([(288, 200), (190, 0)]):
        points: list[dict[str, Any]] = []
        for ago in range(first, last, -1):
            at = now - timedelta(minutes=5 * ago)
            load = 100 + 80 * sin(ago * pi / 144)
            read += 300 * min(load, 150)
            behind = max(0.0, 40_000 * sin(ago * pi / 144))
            point = {"at": at.isoformat(), "read": read}
            points.append(point | {"behind": round(behind), "secondsBehind": behind / 100})
        launch = (now - timedelta(minutes=5 * first)).strftime("%Y%m%dT%H%M%S%f")[:18]
        trend = {"queryId": QUERY, "files": False, "points": points}
        write_trend(live.reports, f"{launch}Z-0000000{number}", trend)
        read = 0.0


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[list[Live]]:
    with ExitStack() as ends:
        made = []
        for name in NAMES:
            folder = tmp_path / "data" / name
            folder.mkdir(parents=True)
            live = Live(folder)
            ends.callback(live.end)
            made.append(live)
        for live in made[:LOST]:
            killed(live.driver)
        for epoch_id in range(1, 30):
            made[-1].commit(epoch_id)
        day(made[-1])
        yield made


@pytest.fixture
def site(tmp_path: Path, streams: list[Live]) -> Iterator[Site]:
    known = [RegisteredDataset(each.uri, "") for each in streams]
    with airflow_of_its_own(tmp_path):
        yield Site(create_app(lambda: known))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        yield browser
        assert browser.dialogs == []
        assert browser.refused == []


def test_fifteen_streams_a_broken_a_healthy_one_and_a_day_of_history(
    browser: Browser, site: Site, streams: list[Live]
) -> None:
    def stream(live: Live) -> str:
        return f"/stream?uri={live.uri}&query={QUERY}"

    pages = {
        "list": ("/", f"{LOST} need you, {len(NAMES) - LOST} fine"),
        "broken": (stream(streams[0]), "LS102"),
        "healthy": (stream(streams[-1]), "The last day"),
    }
    with site.served() as address:
        browser.cookie(f"{address}/", "_token", site.token("OP"))
        for theme in ("light", "dark"):
            for width in (1280, 420):
                browser.prefer(theme)
                browser.resize(width, 900)
                for name, (path, text) in pages.items():
                    assert browser.open(f"{address}{path}") == 200
                    browser.wait(f"document.body.innerText.includes({text!r})")
                    assert browser.run("document.documentElement.scrollWidth") <= width
                    picture(browser, f"{name}-{theme}-{width}.png", "LANCE_PAGE_PICTURES")
                    if (name, theme, width) == ("healthy", "light", 1280):
                        a_day_is_drawn(browser)
                    if (theme, width) == ("light", 1280):
                        # A reader of the documentation has no use for this folder's name.
                        folder = str(Path(streams[0].uri).parent.parent)
                        browser.run(RENAME.format(folder=folder))
                        picture(browser, PICTURES[name], "LANCE_DOC_IMAGES")


def a_day_is_drawn(browser: Browser) -> None:
    charts = "[...document.querySelectorAll('svg')].filter(s => s.ariaLabel.includes(' to '))"
    labels = browser.run(f"{charts}.map(s => s.getAttribute('aria-label'))")
    assert any(label.startswith("Not read yet. rows: 0 to 40,000 rows") for label in labels), labels
    assert any(label.startswith("Age of the oldest that is not read. ") for label in labels)
    [rates] = [label for label in labels if label.startswith("Arriving and read. ")]
    assert "arriving: " in rates
    assert "read: " in rates
    # The day as a whole, interrupted between the two launches.
    paths = browser.run(
        "[...document.querySelectorAll('.line')].slice(0, 3).map(p => p.attributes.d.value)"
    )
    assert all(path.count("M") >= 2 for path in paths)
    assert all(path.count("L") > 200 for path in paths)


def picture(browser: Browser, name: str, variable: str) -> None:
    if folder := os.environ.get(variable):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(folder, name), whole=True)
