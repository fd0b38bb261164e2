"""The page in a real Airflow, seen by a real browser: a live stream, who may see it, markup."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lance
import pytest

from airflow_provider_lance.protocol.codec import key
from tests.support.airflow import REPOSITORY, Airflow, free_port
from tests.support.browser import Browser, find_chromium
from tests.support.maintenance import make
from tests.support.pages import Live
from tests.support.processes import QUICK_JAVA
from tests.support.scene import TASK, Scene
from tests.support.supervised import QUERY, killed

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium on PATH: apt-get install chromium"
    ),
]

MARKUP = "<img src=x onerror=alert(1)>"
PASSWORDS = {"boss": "of-this-test-only-1", "eve": "of-this-test-only-2"}

REGISTERS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_lance.assets.lance import lance_asset

with DAG("registers", schedule=[lance_asset({uri!r})]):
    EmptyOperator(task_id="nothing")
"""

FRAME = "document.querySelector('iframe').contentDocument"


class Guarded(Airflow):
    """An Airflow that asks its users for their passwords."""

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if not self._token:
            who = {"username": "boss", "password": PASSWORDS["boss"]}
            self._token = self._request("POST", "/auth/token", who)["access_token"]
        return super().call(method, path, body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def empty(folder: Path) -> str:
    """Return a dataset that no stream has written to."""
    return make(folder, 1, name="clicks.lance")


@pytest.fixture(scope="module")
def lost(folder: Path) -> Iterator[str]:
    """Return a dataset whose stream lost its driver."""
    place = folder / "flights"
    place.mkdir()
    live = Live(place)
    killed(live.driver)
    yield live.uri
    live.end()


@pytest.fixture(scope="module")
def scene(folder: Path, empty: str, lost: str) -> Iterator[Scene]:
    """Let a stream run whose dataset is known as an asset, beside two known by the option."""
    dags = folder / "dags"
    dags.mkdir()
    shutil.copy(REPOSITORY / "tests" / "system" / "dags" / "stream_ours.py", dags)
    stage = folder / "orders"
    (dags / "registers.py").write_text(REGISTERS.format(uri=str(stage / "table.lance")))
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    changes = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "boss:admin,eve:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__LANCE__DATASETS": f"{empty}#,{lost}#",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    with (
        Guarded(folder / "airflow", dags=dags, changes=changes) as airflow,
        Scene(airflow, stage, "stream_ours") as scene,
    ):
        scene.run()
        scene.flowing()
        yield scene


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as browser:
        yield browser
        # Whatever a page held, no script of it ran, and none was tried.
        assert browser.dialogs == []
        assert browser.refused == []


def site(scene: Scene) -> str:
    return f"http://127.0.0.1:{scene.airflow.port}"


def sign_in(browser: Browser, scene: Scene, user: str = "eve") -> None:
    """Sign in as people do: with Airflow's own form."""
    browser.open(f"{site(scene)}/auth/login")
    browser.wait("document.querySelector('input[name=password]')!==null")
    for name, text in (("username", user), ("password", PASSWORDS[user])):
        browser.type(f"input[name={name}]", text)
    browser.run("document.querySelector('button[type=submit]').click()")
    browser.wait("!location.pathname.includes('/auth/')")


def test_who_signed_in_sees_a_live_stream_in_airflows_own_page(
    browser: Browser, scene: Scene
) -> None:
    sign_in(browser, scene)
    browser.open(f"{site(scene)}/plugin/lance-streams")
    browser.wait(f"{FRAME}?.body?.innerText.includes({scene.query_id!r})")
    browser.wait(f"/(running|idle)\\s+watermark \\d+, committed/.test({FRAME}.body.innerText)")
    browser.wait(f"{FRAME}.body.innerText.includes('no stream has written here yet')")
    assert scene.uri in browser.run(f"{FRAME}.body.innerText")
    # From the list into the stream, still within Airflow's page, under an address of its own.
    browser.run(f"[...{FRAME}.links].find(a => a.text === {scene.query_id!r}).click()")
    browser.wait("location.pathname === '/plugin/lance-streams/lance/stream'")
    browser.wait(f"{FRAME}.querySelectorAll('svg').length >= 5")
    # Its script runs in Airflow's frame, too.
    browser.wait(f"{FRAME}.documentElement.classList.contains('live')")


def test_the_button_of_a_deferred_task_opens_the_streams_page(
    browser: Browser, scene: Scene
) -> None:
    sign_in(browser, scene)
    scene.wait("the deferral", lambda: scene.state()[0] == "deferred")
    browser.open(f"{site(scene)}/dags/{scene.dag_id}/runs/{scene.runs[0]}/tasks/{TASK}/details")
    button = "[...document.links].find(a => a.innerText.trim() === 'Lance stream')"
    browser.wait(f"{button} !== undefined")
    assert browser.run(f"{button}.target") == "_self", "Airflow takes it for a page of its own"
    browser.run(f"{button}.click()")
    browser.wait("location.pathname === '/lance/stream'")
    browser.wait(f"document.body.innerText.includes({scene.uri!r})")
    browser.wait("/(running|idle)/.test(document.body.innerText)")


def test_page_of_a_live_stream_updates_while_it_is_open(browser: Browser, scene: Scene) -> None:
    sign_in(browser, scene)
    for _ in range(2):
        scene.flowing(after=float(scene.commits()[-1]))
        lance.dataset(scene.uri).optimize.compact_files()
    address = f"{site(scene)}/lance/stream?uri={quote(scene.uri)}&query={scene.query_id}"
    assert browser.open(address) == 200
    newest = "Number([...document.querySelectorAll('tbody')].at(-1).querySelector('td').innerText)"
    first = browser.wait(newest)
    browser.run("window.mine = true")
    # Nobody touches it: the page asks again by itself, without a reload.
    browser.wait(f"{newest} > {first}")
    assert browser.run("window.mine")
    text = browser.text()
    owner = scene.owner()
    assert owner is not None
    assert f"{owner.driver.host}:{owner.driver.pid}" in text
    assert owner.driver.launch_id in text
    assert "LS000 healthy" in text
    assert "logOffset" in text
    # Durations of batch and commit come from the driver's heartbeat, a little after the epoch.
    took = "[...document.querySelectorAll('tbody tr')].map(r => r.innerText)"
    assert any(re.search(r"\d m?s\t\d+ ms$", row) for row in browser.run(took))
    marks = "[...document.querySelectorAll('.mark title')].map(t => t.textContent)"
    assert all(text.startswith("compaction, version ") for text in browser.run(marks))
    assert browser.run("document.querySelectorAll('.mark title').length") >= 2


def test_a_stream_without_its_driver_comes_with_what_to_type(
    browser: Browser, scene: Scene, lost: str
) -> None:
    sign_in(browser, scene)
    assert browser.open(f"{site(scene)}/lance/") == 200
    # The worst is the first of the list.
    browser.wait("document.querySelector('tbody .badge.bad') !== null")
    browser.run("document.querySelector('tbody a').click()")
    browser.wait("document.querySelector('.findings') !== null")
    text = browser.text()
    assert "LS102" in text
    assert f"lance-stream release {lost} {QUERY} " in text


def test_light_and_dark(browser: Browser, scene: Scene) -> None:
    sign_in(browser, scene)
    seen = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        assert browser.open(f"{site(scene)}/lance/") == 200
        seen.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert seen == ["rgb(255, 255, 255)", "rgb(15, 20, 27)"]


def test_markup_of_another_tool_is_shown_as_text(
    browser: Browser, scene: Scene, empty: str
) -> None:
    lance.dataset(empty).update_config({key("owner", MARKUP): '{"by": "another tool"}'})
    sign_in(browser, scene)
    assert browser.open(f"{site(scene)}/lance/") == 200
    browser.wait(f"document.body.innerText.includes({MARKUP!r})")
    assert MARKUP in browser.text()
    assert browser.run("document.images.length") == 0
    browser.run(f"[...document.links].find(a => a.text === {MARKUP!r}).click()")
    browser.wait("document.querySelector('h1').innerText.startsWith('<img')")
    assert MARKUP in browser.text()
    assert "LS501" in browser.text()
    assert browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 1, "the page's own"


@pytest.mark.parametrize("path", ["/lance/", "/lance/stream?uri=/a&query=q"])
def test_page_is_refused_to_a_viewer_who_did_not_sign_in(
    browser: Browser, scene: Scene, path: str
) -> None:
    assert browser.open(f"{site(scene)}{path}") == 401
    assert scene.query_id not in browser.text()
    # The link leads to Airflow's form, and from there back.
    browser.run("[...document.links].find(a => a.text.startsWith('Log in')).click()")
    browser.wait("document.querySelector('input[name=password]') !== null")
    # Without a browser, too, and by no method.
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        request = urllib.request.Request(f"{site(scene)}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == (401 if method == "GET" else 405)
        refused.value.close()


def test_airflow_lists_the_page(scene: Scene) -> None:
    plugins = scene.airflow.call("GET", "/plugins")["plugins"]
    [ours] = [each for each in plugins if each["name"] == "lance"]
    assert [view["href"] for view in ours["external_views"]] == ["lance/"]
