"""The page in a real browser: it refreshes itself, fits a telephone, and its form works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.plugins.page import app as app_module
from airflow_provider_lance.plugins.page.app import create_app
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from tests.support.browser import Browser, find_chromium
from tests.support.pages import Live, Site, airflow_of_its_own
from tests.support.supervised import QUERY, killed

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium on PATH: apt-get install chromium"
    ),
]

NARROW = 420


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    folder = tmp_path / "live"
    folder.mkdir()
    made = Live(folder)
    yield made
    made.end()


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Live]:
    folder = tmp_path / "lost"
    folder.mkdir()
    made = Live(folder)
    killed(made.driver)
    yield made
    made.end()


@pytest.fixture
def site(tmp_path: Path, live: Live, lost: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(app_module, "REFRESH", 1)
    known = [RegisteredDataset(each.uri, "") for each in (live, lost)]
    with airflow_of_its_own(tmp_path):
        yield Site(create_app(lambda: known))


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    with site.served() as address:
        yield address


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        yield browser
        assert browser.dialogs == []
        assert browser.refused == []


def sign_in(browser: Browser, site: Site, address: str, role: str = "VIEWER") -> None:
    browser.cookie(f"{address}/", "_token", site.token(role))


def test_stream_is_refreshed_in_place_and_keeps_scroll_focus_and_what_was_opened(
    browser: Browser, site: Site, address: str, live: Live
) -> None:
    sign_in(browser, site, address)
    browser.resize(900, 300)
    assert browser.open(f"{address}/stream?uri={live.uri}&query={QUERY}") == 200
    browser.wait("document.querySelector('tbody td') !== null")
    browser.run("window.mine = document.querySelector('.path a'); mine.focus(); scrollTo(0, 400)")
    browser.run("window.scrolled = scrollY; scrolled > 100 || error")
    live.commit(1)
    live.commit(2)
    newest = (
        "Number([...document.querySelectorAll('tbody')].at(-1).querySelector('td').innerText) === 2"
    )
    browser.wait(newest)
    assert browser.run("window.mine?.isConnected && document.activeElement === window.mine")
    assert browser.run("scrollY === window.scrolled")


def test_list_is_sorted_again_without_losing_the_focus(
    browser: Browser, site: Site, address: str, live: Live, lost: Live
) -> None:
    sign_in(browser, site, address)
    assert browser.open(f"{address}/") == 200
    first = "document.querySelector('tbody tr').innerText"
    browser.wait(f"{first}.includes({lost.uri!r})")
    browser.run("window.mine = [...document.links].at(-1); mine.focus()")
    assert "1 needs you, 1 fine" in browser.text()
    killed(live.driver)
    browser.wait(f"{first}.includes({live.uri!r})")
    assert "2 need you" in browser.run("document.title")
    assert browser.run("document.activeElement === window.mine")


def test_signed_out_page_says_so_and_links_to_the_login(
    browser: Browser, site: Site, address: str
) -> None:
    sign_in(browser, site, address)
    assert browser.open(f"{address}/") == 200
    browser.forget_cookies()
    browser.wait("document.body.innerText.includes('401')")
    login = browser.run("[...document.links].find(a => a.text.startsWith('Log in')).href")
    assert login.endswith("/api/v2/auth/login?next=%2Flance%2F")
    assert QUERY not in browser.text()


def test_page_says_when_airflow_no_longer_answers(browser: Browser, site: Site) -> None:
    with site.served() as address:
        sign_in(browser, site, address)
        assert browser.open(f"{address}/") == 200
        before = browser.run("document.querySelector('main').innerText")
    silent = "document.querySelector('footer').innerText.split('Airflow does not answer').length"
    browser.wait(f"{silent} === 2")
    time.sleep(2.5)
    assert browser.run(silent) == 2, "it is said once"
    assert QUERY in before
    assert QUERY in browser.text()


def test_finding_is_acknowledged_and_its_command_copied(
    browser: Browser, site: Site, address: str, lost: Live
) -> None:
    sign_in(browser, site, address, "OP")
    assert browser.open(f"{address}/stream?uri={lost.uri}&query={QUERY}") == 200
    browser.wait("document.querySelector('button.copy') !== null")
    browser.run("document.querySelector('button.copy').click()")
    browser.wait("document.querySelector('button.copy').textContent === 'copied'")
    browser.run("document.querySelector('form.acknowledge button').click()")
    browser.wait("document.body.innerText.includes('Acknowledged by eve')")
    assert browser.open(f"{address}/") == 200
    browser.wait("document.body.innerText.includes('1 acknowledged, 1 fine')")


@pytest.mark.parametrize("page", ["/", "/stream"])
def test_nothing_is_cut_off_on_a_telephone(
    browser: Browser, site: Site, address: str, lost: Live, page: str
) -> None:
    sign_in(browser, site, address, "OP")
    browser.resize(NARROW, 900)
    query = f"?uri={lost.uri}&query={QUERY}" if page == "/stream" else ""
    assert browser.open(f"{address}{page}{query}") == 200
    browser.wait("document.body.innerText.includes('LS102')")
    assert browser.run("document.documentElement.scrollWidth") <= NARROW
    # Sentences, badges and commands end within the window; wide tables of epochs may scroll.
    outside = (
        "[...document.querySelectorAll('p, small, .badge, .steps, .command, .streams td, dd')]"
        f".filter(e => e.getBoundingClientRect().right > {NARROW}"
        " || e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')"
        ".map(e => e.outerHTML)"
    )
    assert browser.run(outside) == []
