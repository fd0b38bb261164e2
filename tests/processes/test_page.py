"""The page as its viewers get it: real datasets, Airflow's own auth manager and database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import lance
import pyarrow as pa
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.lance import stream_url
from airflow_provider_lance.plugins.page.app import create_app
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.quarantine import NAME
from airflow_provider_lance.protocol.sides import encode_side
from tests.support.consumers import leave, spoil
from tests.support.maintenance import make
from tests.support.pages import Live, Site, airflow_of_its_own, let_stream, register, words
from tests.support.supervised import QUERY, here

MARKUP = "<img src=x onerror=alert(1)>"
SECRET = "s3cr3t-of-the-store"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    folder = tmp_path / "live"
    folder.mkdir()
    made = Live(folder)
    yield made
    made.end()


@pytest.fixture
def known() -> list[RegisteredDataset]:
    return []


@pytest.fixture
def site(tmp_path: Path, known: list[RegisteredDataset]) -> Iterator[Site]:
    with airflow_of_its_own(tmp_path):
        yield Site(create_app(lambda: known))


def detail(site: Site) -> Any:
    """Ask for the one stream that the list links to."""
    [link] = site.links(site.ask("/").text)
    return site.ask(link)


# --- What is shown --------------------------------------------------------------------------------


def test_a_live_stream(site: Site, known: list[RegisteredDataset], live: Live) -> None:
    known.append(RegisteredDataset(live.uri))
    for epoch_id in range(1, 4):
        live.commit(epoch_id)
    shown = words(site.ask("/").text)
    assert "1 fine health stream" in shown
    assert re.search(rf"idle watermark 3, committed .* flights {live.uri} 3 ", shown), shown
    assert f"12 {here(live.driver).host}:{live.driver.pid}" in shown

    answer = detail(site)
    assert answer.status_code == 200
    shown = words(answer.text)
    assert "idle watermark 3, committed" in shown
    assert "LS000 healthy" in shown
    assert f"rows {12} fragments 4" in shown
    assert "Read by" not in shown
    # epoch, version, rows, expectations not met, fragments, offsets, batch and commit duration
    version = live.committer.port.version
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    row = rf'3 {moment} {version} 3 – 1 {{"logOffset": 2}} {{"logOffset": 3}} 253 ms 4 ms'
    assert re.search(row, shown), shown


def test_a_stream_that_reads_lance(site: Site, known: list[RegisteredDataset], live: Live) -> None:
    known.append(RegisteredDataset(live.uri))
    end = {"version": 7, "timestamp": 1, "index": 300, "snapshot": True, "sourceVersion": 1}
    behind = {"versionsBehind": 2, "rowsBehind": 1200, "secondsBehind": 34.0}
    live.progress = {"sources": [{"endOffset": end, "latestOffset": end | behind}]}
    live.commit(1)
    Path(live.checkpoint, "offsets", "1").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    shown = words(detail(site).text)
    assert "1,200 (2 versions, 34 s) behind" in shown
    position = "row 300 of the snapshot of version 7"
    facts = f"rows behind 1,200 source {position} versions behind 2 oldest unread version 34 s ago"
    assert facts in shown
    assert f'{{"logOffset": 0}} {position}' in shown


def test_a_stateful_stream(site: Site, known: list[RegisteredDataset], live: Live) -> None:
    known.append(RegisteredDataset(live.uri))
    live.commit(1)
    operators = [
        {"name": "stateStoreSave", "rows": 2100, "bytes": 8416, "tooLate": 2},
        {"name": "<b>dedupe", "rows": 1, "bytes": 90, "tooLate": 1},
    ]
    at = "2026-03-01T12:03:26.211Z"
    live.beat(queryState={"operators": operators, "eventTimeWatermark": at})
    shown = words(detail(site).text)
    assert "query state stateStoreSave 2,100 rows in 8.4 kB, <b>dedupe 1 row in 90 B" in shown
    assert re.search(r"event-time watermark 2026-03-01 12:03:26 UTC \(\d+ \w+ ago\)", shown), shown
    assert "rows too late 3 " in shown


def test_the_charts(site: Site, known: list[RegisteredDataset], live: Live) -> None:
    known.append(RegisteredDataset(live.uri))
    for epoch_id in range(1, 6):
        live.commit(epoch_id)
        if epoch_id == 3:
            lance.dataset(live.uri).optimize.compact_files()
    html = detail(site).text
    titles = ["Epochs over time", "Batch duration", "Commit duration", "Rows in each epoch"]
    for title in [*titles, "Fragments of the dataset"]:
        assert html.count(f'aria-label="{title}. ') == 1
    assert "Spark&#39;s whole trigger: 250 ms to 255 ms, median 252 ms" in html
    assert html.count("<rect ") == 6
    # Marked where it is: in the chart over time, and in the one that it changed.
    assert html.count("<title>compaction, version ") == 2
    drop = ["4 fragments after epoch 3,", "1 fragment after comp", "2 fragments after epoch 4,"]
    places = [html.index(words) for words in drop]
    assert places == sorted(places)


def test_a_finding_with_what_to_type(
    site: Site,
    known: list[RegisteredDataset],
    live: Live,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LanceHook, "airflow_url", "https://airflow.example")
    known.append(RegisteredDataset(live.uri))
    live.driver.kill()
    live.driver.wait()
    page = detail(site).text
    assert 'href="https://airflow.example/dags/dag/runs/run/tasks/stream' in page
    shown = words(page)
    assert "error LS102" in shown
    assert f"lance-stream release {live.uri} {QUERY} --for-good --yes" in shown
    listed = site.ask("/").text
    [badge] = [line for line in listed.splitlines() if 'class="badge' in line]
    assert '<span class="badge bad">error</span>' in badge
    # The code and the sentence before any name; and no state in red.
    shown = words(listed)
    assert "1 needs you" in shown
    assert shown.index("error LS102 ") < shown.index(live.uri)


def test_side_tables_quarantine_and_what_changed(
    site: Site, known: list[RegisteredDataset], live: Live, tmp_path: Path
) -> None:
    known.append(RegisteredDataset(live.uri))
    uri = str(tmp_path / "aside.lance")
    reasons = ["too late", MARKUP, "too late"]
    rows = {
        "query_id": [QUERY] * 3,
        "reason": reasons,
        "epoch": [1, 2, 3],
        "fed_at": pa.array([None, None, datetime.now(UTC)], pa.timestamp("us", "UTC")),
    }
    lance.write_dataset(pa.table(rows), uri)
    open_dataset(live.uri).commit(Configure(encode_side(QUERY, NAME, uri)))
    lance.dataset(live.uri).restore()
    answer = detail(site)
    shown = words(answer.text)
    lost = "lacks rows: it has no trace of the query"
    assert f"Side tables table watermark state where {NAME} – {lost} {uri}" in shown
    assert "reason rows not fed back epochs too late 2 1 1–3" in shown
    assert f"{MARKUP} 1 1 2–2" in shown
    assert "<img" not in answer.text
    assert "was restored" in shown
    assert "a driver claimed it with token 1" in shown


def test_since_when_a_stream_is_not_healthy(
    site: Site, known: list[RegisteredDataset], live: Live
) -> None:
    known.append(RegisteredDataset(live.uri))
    live.driver.kill()
    live.driver.wait()
    for answer in (site.ask("/"), detail(site)):
        assert re.search(r"[Ss]ince \d{4}-\d\d-\d\d [\d:]{8} UTC, \d+ s ago", words(answer.text))


def test_who_reads_the_dataset(site: Site, known: list[RegisteredDataset], live: Live) -> None:
    known.append(RegisteredDataset(live.uri))
    leave(live.uri, 1, uri="/data/hourly.lance", ago=120)
    leave(live.uri, 1, consumer_id=MARKUP, ago=8 * 24 * 3600)
    spoil(live.uri, MARKUP, consumer_id="bad")
    answer = detail(site)
    shown = words(answer.text)
    row = r"hourly version 1 \d \d+ (?:s|min) ago \d min ago /data/hourly.lance"
    assert re.search(row, shown), shown
    assert "LS602" in shown
    assert "LS501" in shown
    assert "<img" not in answer.text
    assert MARKUP in shown


def test_what_cannot_be_read_says_so_in_its_own_row(
    site: Site, known: list[RegisteredDataset], live: Live, tmp_path: Path
) -> None:
    known += [
        RegisteredDataset(live.uri),
        RegisteredDataset(str(tmp_path / "none.lance")),
        RegisteredDataset("/a", "gone"),
    ]
    known.append(RegisteredDataset(make(tmp_path, 1)))
    answer = site.ask("/")
    assert answer.status_code == 200
    shown = words(answer.text)
    assert "DatasetNotFoundError: " in shown
    assert re.search("SpecError: .*'gone'", shown)
    assert "empty no stream has written here yet" in shown
    assert "idle watermark 0, committed" in shown
    # The worst comes first.
    assert "2 need you, 1 fine, 1 empty" in shown
    assert shown.index("cannot be read") < shown.index("idle watermark 0")


def test_without_a_dataset_it_says_how_to_register_one(site: Site) -> None:
    assert "outlets=[lance_asset(" in words(site.ask("/").text)


def test_registered_assets_are_listed(tmp_path: Path, live: Live) -> None:
    with airflow_of_its_own(tmp_path):
        register(f"lance://{live.uri}")
        assert f"flights {live.uri} 0 " in words(Site(create_app()).ask("/").text)


def test_stream_without_outlets_is_listed_to_users_who_may_read_its_dag(
    tmp_path: Path, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = {"uri": live.uri, "query_id": QUERY, "lance_conn_id": None}
    with airflow_of_its_own(tmp_path):
        let_stream("ours", rendered)
        site = Site(create_app())
        address = stream_url(live.uri, QUERY, None).removeprefix("lance")
        assert f"flights {live.uri} 0 " in words(site.ask("/").text)
        [listed] = site.links(site.ask("/").text)
        assert listed == address, "the list and the task's button lead to the same page"
        assert "LS000 healthy" in words(site.ask(address).text)
        monkeypatch.setattr(SimpleAuthManager, "filter_authorized_dag_ids", lambda self, **_: set())
        assert "outlets=[lance_asset(" in words(site.ask("/").text)
        assert site.ask(address).status_code == 404


def test_of_a_shared_dataset_a_viewer_sees_the_streams_of_his_dags(
    site: Site, known: list[RegisteredDataset], live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.dataset(live.uri).update_config({key("owner", "theirs"): "no JSON"})
    monkeypatch.setattr(
        SimpleAuthManager, "get_authorized_dag_ids", lambda self, **_: {"ours", "starting"}
    )
    known += [
        RegisteredDataset(live.uri, "", QUERY, "ours"),
        RegisteredDataset(live.uri, "", "theirs", "other"),
    ]
    known.append(RegisteredDataset(live.uri, "", "soon", "starting"))
    leave(live.uri, 1, uri="/theirs/hourly.lance", ago=8 * 24 * 3600)
    shown = words(site.ask("/").text)
    assert f"flights {live.uri} 0 " in shown
    assert "theirs" not in shown
    answer = site.ask(f"/stream?uri={live.uri}&query={QUERY}&conn_id=")
    assert answer.status_code == 200
    assert "hourly" not in answer.text, "a consumer is of another team's DAG"
    assert site.ask(f"/stream?uri={live.uri}&query=theirs&conn_id=").status_code == 404
    begins = site.ask(f"/stream?uri={live.uri}&query=soon&conn_id=")
    assert "no driver" in words(begins.text)
    known.append(RegisteredDataset(live.uri))  # an asset: for all who may read assets
    assert "theirs" in words(site.ask("/").text)


def test_registered_datasets_that_cannot_be_read(tmp_path: Path) -> None:
    def broken() -> list[RegisteredDataset]:
        raise OSError("the database is gone")

    with airflow_of_its_own(tmp_path):
        site = Site(create_app(broken))
        assert "OSError: the database is gone" in words(site.ask("/").text)
        assert site.ask("/stream?uri=/a&query=q").status_code == 404


# --- What somebody else put there -----------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        '{"state": "broken"}',
        "no JSON <script>alert(2)</script>",
        json.dumps({"protocol": 99, "token": 1}),
    ],
)
def test_a_query_id_with_markup_is_text(
    site: Site, known: list[RegisteredDataset], tmp_path: Path, record: str
) -> None:
    uri = make(tmp_path, 1)
    lance.dataset(uri).update_config({key("owner", MARKUP): record})
    known.append(RegisteredDataset(uri))
    answers = [site.ask("/"), detail(site)]
    for answer in answers:
        assert answer.status_code == 200
        assert "<img" not in answer.text
        assert answer.text.count("<script") == 1, "the page's own"
        assert MARKUP in words(answer.text)
        assert "LS501" in words(answer.text)


def test_markup_in_everything_that_a_driver_records(
    site: Site, known: list[RegisteredDataset], live: Live
) -> None:
    config = lance.dataset(live.uri).config()
    owner = json.loads(config[key("owner", QUERY)])
    marked = {
        name: f"{MARKUP}{value}"
        for name, value in owner.items()
        if isinstance(value, str) and name not in ("state", "checkpointLocation")
    }
    lance.dataset(live.uri).update_config({key("owner", QUERY): json.dumps(owner | marked)})
    live.beat(driver={"uiAddress": "javascript:alert(1)", "launchedBy": MARKUP}, time=MARKUP)
    known.append(RegisteredDataset(live.uri))
    for answer in (site.ask("/"), detail(site)):
        assert answer.status_code == 200
        assert "<img" not in answer.text
        assert 'href="javascript' not in answer.text


# --- Who may see it -------------------------------------------------------------------------------


PATHS = ["/", "/stream", "/stream?uri=/a&query=q"]


@pytest.mark.parametrize("path", PATHS)
def test_page_answers_401_without_signing_in(
    site: Site, known: list[RegisteredDataset], path: str
) -> None:
    known.append(RegisteredDataset("/a"))
    answer = site.ask(path, role=None)
    assert answer.status_code == 401
    assert "Not authenticated" in words(answer.text)
    login = urlencode({"next": f"/lance{path}"})
    assert f'href="../api/v2/auth/login?{escape(login)}"' in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_who_may_not_read_assets_does_not_see_it(site: Site, path: str) -> None:
    answer = site.ask(path, role="")
    assert answer.status_code == 403
    assert "read assets" in words(answer.text)


@pytest.mark.parametrize("role", ["VIEWER", "USER", "OP", "ADMIN"])
def test_every_role_that_may_read_assets_sees_it(site: Site, role: str) -> None:
    assert site.ask("/", role=role).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", PATHS)
def test_what_is_shown_cannot_be_changed(site: Site, method: str, path: str) -> None:
    assert site.ask(path, method=method, role="ADMIN").status_code == 405
    assert site.ask(path, method=method, role=None).status_code == 405


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_only_a_form_can_acknowledge(site: Site, method: str) -> None:
    assert site.ask("/acknowledge", method=method, role="ADMIN").status_code == 405


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"])
@pytest.mark.parametrize("role", [None, "ADMIN"])
def test_its_api_docs_are_closed(site: Site, path: str, role: str | None) -> None:
    assert site.ask(path, role=role).status_code == 404


def test_only_what_is_known_is_opened(site: Site, live: Live) -> None:
    assert site.ask(f"/stream?uri={live.uri}&query={QUERY}").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/stream?uri={uri}&query=flights", 200),
        ("/stream?uri={uri}&query=flights&conn_id=", 200),
        ("/stream?uri={uri}&query=flights&conn_id=other", 404),
        ("/stream?uri={uri}&query=other", 404),
        ("/stream?uri={uri}/&query=flights", 404),
        ("/stream?uri={uri}/../flights.lance&query=flights", 404),
        ("/stream?uri=/etc/passwd&query=flights", 404),
        ("/stream?query=flights", 404),
        ("/stream", 404),
    ],
)
def test_a_viewer_names_a_known_stream_exactly(
    site: Site, known: list[RegisteredDataset], live: Live, path: str, status: int
) -> None:
    known.append(RegisteredDataset(live.uri, ""))
    assert site.ask(path.format(uri=live.uri)).status_code == status


def test_a_browser_may_show_it_and_nothing_else(site: Site) -> None:
    for answer in (site.ask("/"), site.ask("/", role=None), site.ask("/none")):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "script-src 'sha256-" in policy
        assert "form-action 'self'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_pages_load_nothing_and_have_one_script_of_their_own(
    site: Site, known: list[RegisteredDataset], live: Live
) -> None:
    known.append(RegisteredDataset(live.uri))
    for answer in (site.ask("/"), detail(site), site.ask("/", role=None)):
        for word in ("<script ", "<link", "<img", " style=", " onload=", "@import", "url("):
            assert word not in answer.text
        assert answer.text.count("<script>") == 1
        assert "http" not in answer.text.replace("http-equiv", "").replace("http://driver", "")


def test_without_a_script_the_page_still_reloads(site: Site) -> None:
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in site.ask("/").text
    assert "refresh" not in site.ask("/none").text.split("</style>")[0]


def test_secrets_are_not_shown(
    site: Site, known: list[RegisteredDataset], tmp_path: Path, add_connection: Any
) -> None:
    options = {"aws_secret_access_key": SECRET, "region": "eu-central-1"}
    add_connection("minio", {"storage_options": options}, conn_type="lance")
    uri = make(tmp_path, 1)
    # An error that quotes what opened the dataset, as some stores' do.
    lance.dataset(uri).update_config({key("owner", "orders"): f"signed with {SECRET}"})
    known.append(RegisteredDataset(uri, "minio"))
    for answer in (site.ask("/"), detail(site)):
        assert "signed with" in answer.text
        assert SECRET not in answer.text
        assert "eu-central-1" not in answer.text
