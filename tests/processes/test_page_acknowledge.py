"""Acknowledged findings: who may, for how long, and what ends it; kept in Airflow's database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from airflow_provider_lance.plugins.page import mutes
from airflow_provider_lance.plugins.page.app import create_app
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from tests.support.pages import Live, Site, airflow_of_its_own, words
from tests.support.supervised import QUERY, killed

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    folder = tmp_path / "live"
    folder.mkdir()
    made = Live(folder)
    killed(made.driver)
    yield made
    made.end()


@pytest.fixture
def known(live: Live) -> list[RegisteredDataset]:
    return [RegisteredDataset(live.uri)]


@pytest.fixture
def site(tmp_path: Path, known: list[RegisteredDataset]) -> Iterator[Site]:
    with airflow_of_its_own(tmp_path):
        yield Site(create_app(lambda: known))


def form_of(site: Site, token: str) -> dict[str, str]:
    """Return the fields of the form on the stream's page."""
    [link] = site.links(site.ask("/", token=token).text)
    html = site.ask(link, token=token).text
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html)
    return {name: unescape(value) for name, value in fields}


def send(site: Site, token: str, **changes: str) -> Any:
    form = form_of(site, token) | {"hours": "8"} | changes
    return site.ask("/acknowledge", method="POST", token=token, form=form)


def test_acknowledged_stream_is_muted_and_says_who_and_until_when(site: Site, live: Live) -> None:
    token, version = site.token("OP"), lance.dataset(live.uri).version
    answer = send(site, token)
    assert answer.status_code == 303
    assert site.ask(f"/{answer.headers['location']}").status_code == 200
    shown = words(site.ask("/").text)
    assert "1 acknowledged" in shown
    assert "needs you" not in shown
    assert "muted LS102" in shown
    assert re.search(r"acknowledged by eve at [\d: -]+, until [\d: -]+ UTC or until it", shown)
    assert lance.dataset(live.uri).version == version, "the page writes into no dataset"
    # Another process of the API server sees it, too; and it can be taken back.
    [mute] = mutes.read_mutes()
    length = datetime.fromisoformat(mute.until) - datetime.fromisoformat(mute.at)
    assert (mute.by, length) == ("eve", timedelta(hours=8))
    assert send(site, token, hours="0").status_code == 303
    assert "1 needs you" in words(site.ask("/").text)
    assert mutes.read_mutes() == []


def test_who_may_only_read_has_no_form_and_is_refused(site: Site) -> None:
    [link] = site.links(site.ask("/").text)
    form = form_of(site, site.token("OP"))
    for role in ("VIEWER", "USER"):
        assert "<form" not in site.ask(link, role=role).text
        token = site.token(role)
        refused = site.ask("/acknowledge", method="POST", token=token, form=form | {"hours": "8"})
        assert refused.status_code == 403
    assert mutes.read_mutes() == []


@pytest.mark.parametrize(
    ("role", "seen", "acknowledged"),
    [
        (None, 401, 401),
        ("", 403, 403),
        ("VIEWER", 200, 403),
        ("USER", 200, 403),
        ("OP", 200, 303),
        ("ADMIN", 200, 303),
    ],
)
def test_each_role_on_each_route(
    site: Site, role: str | None, seen: int, acknowledged: int
) -> None:
    [stream] = site.links(site.ask("/").text)
    answers = {path: site.ask(path, role=role).status_code for path in ("/", stream)}
    assert answers == {"/": seen, stream: seen}
    if seen == 200:
        assert ("<form" in site.ask(stream, role=role).text) == (acknowledged == 303)
    if acknowledged == 303:
        assert send(site, site.token(str(role))).status_code == 303
    else:
        refused = site.ask("/acknowledge", method="POST", role=role, form={})
        assert refused.status_code == acknowledged
    assert bool(mutes.read_mutes()) == (acknowledged == 303)


def test_stream_known_by_its_dag_needs_the_right_to_edit_that_dag(
    site: Site, known: list[RegisteredDataset], live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    known[:] = [RegisteredDataset(live.uri, "", QUERY, "ours")]
    may: dict[str, set[str]] = {"GET": {"ours"}, "PUT": set()}
    monkeypatch.setattr(
        SimpleAuthManager, "get_authorized_dag_ids", lambda self, *, user, method: may[method]
    )
    token = site.token("ADMIN")
    [link] = site.links(site.ask("/", token=token).text)
    assert "<form" not in site.ask(link, token=token).text
    may["PUT"] = {"ours"}
    form = form_of(site, token) | {"hours": "1"}
    may["PUT"] = {"other"}
    assert site.ask("/acknowledge", method="POST", token=token, form=form).status_code == 403
    may["PUT"] = {"ours"}
    assert site.ask("/acknowledge", method="POST", token=token, form=form).status_code == 303
    may["GET"] = {"other"}
    assert site.ask("/acknowledge", method="POST", token=token, form=form).status_code == 404


def test_form_of_another_site_or_session_is_refused(site: Site) -> None:
    token = site.token("ADMIN")
    assert send(site, token, key="").status_code == 403
    assert send(site, token, key="ünknown").status_code == 403
    other = form_of(site, site.token("OP"))["key"]
    answer = send(site, token, key=other)
    assert answer.status_code == 403
    assert "another site" in words(answer.text)
    assert mutes.read_mutes() == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"wrong": "LS999 error"}, 409),
        ({"hours": "1000000"}, 422),
        ({"hours": MARKUP}, 422),
        ({"uri": "/etc/passwd"}, 404),
        ({"query": "other"}, 409),
        ({"uri": "x" * 30_000}, 413),
    ],
)
def test_form_with_other_values_is_refused(
    site: Site, changes: dict[str, str], status: int
) -> None:
    answer = send(site, site.token("ADMIN"), **changes)
    assert answer.status_code == status
    assert "<img" not in answer.text
    assert mutes.read_mutes() == []


def test_it_ends_with_its_time_and_when_something_else_is_wrong(
    site: Site, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_lance.diagnostics.status import take_status
    from airflow_provider_lance.protocol.dataset import open_dataset

    send(site, site.token("OP"))
    [given] = mutes.read_mutes()
    now = datetime.now(UTC)
    status = take_status(open_dataset(live.uri), QUERY)
    assert given.covers(status, now)
    assert not given.covers(status, now + timedelta(hours=9))
    # The same code, of a later launch.
    later = {name: getattr(status, name) for name in status.__dataclass_fields__}
    assert not given.covers(type(status)(**later | {"launch_id": "later"}), now)
    # Another code beside it.
    other = mutes.Mute(given.uri, QUERY, "eve", given.at, given.until, ("LS103 error launch",))
    assert not other.covers(status, now)
    assert mutes.muted([other, given], live.uri, status, now) == given
    assert mutes.muted([given], "/elsewhere", status, now) is None


def test_name_with_markup_and_variables_of_others(site: Site, live: Live) -> None:
    from airflow.models.variable import Variable

    token = site.token("OP")
    send(site, token)
    text = Variable.get(mutes._name(live.uri, QUERY)).replace('"eve"', f'"{MARKUP}"')
    Variable.set(mutes._name(live.uri, QUERY), text)
    Variable.set("lance_page_muted_by_hand", "no JSON")
    Variable.set("lanceXpageXmutedX", text)
    assert [each.by for each in mutes.read_mutes()] == [MARKUP]
    page = Site(create_app(lambda: [RegisteredDataset(live.uri)]))
    answer = page.ask("/")
    assert "<img" not in answer.text
    assert f"acknowledged by {MARKUP}" in words(answer.text)
