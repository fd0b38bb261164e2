"""What the notifiers send, through Airflow's own hooks, to servers on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from email.header import decode_header, make_header
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference
from airflow.triggers.callback import CallbackTrigger

from airflow_provider_lance.notifications.lance import (
    LanceEmailNotifier,
    LanceNotifier,
    LanceSlackNotifier,
    LanceWebhookNotifier,
)
from airflow_provider_lance.notifications.templates import Alert, email_html, slack_blocks
from airflow_provider_lance.operators.stream import LanceStreamOperator
from tests.support.cli import Stream
from tests.support.stores import hanging_store
from tests.support.webhook import web

from .conftest import AddConnection, Shown

TOKEN = "T0/B0/a-token-that-must-not-be-seen"


@contextmanager
def mail() -> Iterator[tuple[int, list[str]]]:
    """Serve SMTP; yield the port, and the mails that have come."""
    got: list[str] = []

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 loopback\r\n")
            while line := self.rfile.readline().decode().strip():
                word = line.split()[0].upper()
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = list(iter(lambda: self.rfile.readline().decode(), ".\r\n"))
                    got.append("".join(lines))
                self.wfile.write(b"221 bye\r\n" if word == "QUIT" else b"250 ok\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], got
        server.shutdown()


class Kept(LanceNotifier):
    """A notifier of a user's own."""

    def send(self, alert: Alert) -> None:
        KEPT.append(alert)


KEPT: list[Alert] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    KEPT.clear()


def test_a_notifier_without_its_own_send_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="send"):
        LanceNotifier()


def context(state: str = "failed", task: Any = None, **more: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="orders_dag",
        task_id="stream",
        run_id="manual",
        state=state,
        log_url="http://airflow/log?a=1&b=2",
    )
    return {"ti": ti, "task": task, "exception": ValueError("a <b> & c\nsecond line"), **more}


@pytest.fixture
def broken(stream: Stream, process: subprocess.Popen[bytes]) -> Stream:
    """Return a stream whose driver is gone."""
    process.kill()
    process.wait()
    return stream


def operator(uri: str, **more: Any) -> LanceStreamOperator:
    return LanceStreamOperator(
        task_id="stream",
        uri=uri,
        source={"format": "parquet", "options": {"path": "/data/in"}, "schema": "id INT"},
        checkpoint_location="/data/checkpoint",
        **{"query_id": "orders", "lance_conn_id": None, **more},
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("failed", "Task orders_dag.stream failed, run manual"),
        ("up_for_retry", "Task orders_dag.stream failed and will be retried, run manual"),
        ("success", "Task orders_dag.stream succeeded, run manual"),
    ],
)
def test_a_task_is_checked_by_its_own_arguments(broken: Stream, state: str, said: str) -> None:
    """The message is that of the check, with what to type."""
    Kept()(context(state, operator(broken.uri)))
    [alert] = KEPT
    assert alert.headline == said
    assert alert.severity == "error"
    assert alert.text.startswith("ValueError: a <b> & c\nLance ")
    assert f"lance-stream release {broken.uri} orders --for-good --yes" in alert.text
    assert alert.report is not None
    assert alert.report["findings"][0]["code"] == "LS102"


def test_arguments_of_the_notifier_are_templates(broken: Stream) -> None:
    folder, _, name = broken.uri.rpartition("/")
    Kept(uri="{{ params.folder }}/" + name, query_id="{{ params.query }}")(
        context(params={"folder": folder, "query": "orders"})
    )
    [alert] = KEPT
    assert alert.uri == broken.uri
    assert "LS102" in alert.text


def test_a_task_whose_templates_were_never_rendered(broken: Stream) -> None:
    folder, _, name = broken.uri.rpartition("/")
    Kept()(context(task=operator("{{ params.folder }}/" + name), params={"folder": folder}))
    assert KEPT[0].uri == broken.uri


def test_a_healthy_stream_is_no_alarm(stream: Stream) -> None:
    Kept(uri=stream.uri)(context("success", exception=None))
    assert KEPT[0].severity == "info"
    assert "healthy" in KEPT[0].text


def test_a_check_without_an_answer_raises_nothing(tmp_path: Path) -> None:
    Kept(uri=str(tmp_path / "gone.lance"))(context())
    Kept(uri="/x.lance", lance_conn_id="no_such_connection")(context())
    Kept(uri="relative.lance")(context())
    Kept()(context())
    assert [each.severity for each in KEPT] == ["unknown"] * 4
    texts = [each.text.partition("\n")[2] for each in KEPT]
    assert all("nothing is known" in text for text in texts[:3]), texts
    assert "DatasetNotFoundError" in texts[0]
    assert "no_such_connection" in texts[1]
    assert texts[3] == "Not checked: neither the notifier nor the task names a dataset."


def test_a_store_that_hangs_ends_at_the_time_out(
    add_connection: AddConnection, shown: Shown
) -> None:
    with hanging_store() as endpoint:
        options = {
            "endpoint": endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": "id",
            "secret_access_key": TOKEN,
        }
        add_connection("slow", conn_type="lance", extra={"storage_options": options})
        Kept(uri="s3://bucket/orders.lance", lance_conn_id="slow", timeout=1)(context())
    assert "no answer within 1 s" in KEPT[0].text
    assert TOKEN not in shown() + str(KEPT)


def test_a_secret_in_an_error_is_masked(add_connection: AddConnection, stream: Stream) -> None:
    options = {"secret_access_key": TOKEN}
    add_connection("lake", conn_type="lance", extra={"storage_options": options})
    error = RuntimeError(f"refused {TOKEN}")
    Kept(uri=stream.uri, lance_conn_id="lake")(context(exception=error))
    assert KEPT[0].text.startswith("RuntimeError: refused ***")


def test_a_secret_in_a_uri_does_not_leave(tmp_path: Path) -> None:
    Kept(uri=f"s3://KEY:SECRET@127.0.0.1:1/{tmp_path.name}.lance", timeout=1)(context())
    assert "s3://127.0.0.1:1/" in KEPT[0].text
    assert "SECRET" not in str(KEPT)


def test_a_message_in_a_chat(broken: Stream, add_connection: AddConnection, shown: Shown) -> None:
    with web() as (port, got):
        add_connection(
            "slack_default",
            conn_type="slackwebhook",
            host=f"http://127.0.0.1:{port}/services",
            password=TOKEN,
        )
        LanceSlackNotifier(uri=broken.uri)(context())
    [(path, _, said)] = got
    assert path == f"/services/{TOKEN}"
    assert said["text"] == "[error] Task orders_dag.stream failed, run manual"
    header, section, foot = said["blocks"]
    assert header["text"]["text"] == said["text"]
    assert "ValueError: a &lt;b&gt; &amp; c" in section["text"]["text"]
    assert f"lance-stream release {broken.uri} orders --for-good --yes" in section["text"]["text"]
    assert foot["elements"][0]["text"] == "<http://airflow/log?a=1&amp;b=2|Log>"
    assert TOKEN not in shown()


def test_a_long_message_is_cut_where_slack_would_refuse_it() -> None:
    text = "\n".join(["<" * 1000] * 50 + ["``` @here"])
    blocks = slack_blocks(Alert("word " * 100, text, "error"))
    assert len(blocks[0]["text"]["text"]) <= 150
    assert len(blocks) == 12
    assert all(len(each["text"]["text"]) <= 3000 for each in blocks[1:-1])
    assert "did not fit" in blocks[-1]["elements"][0]["text"]
    assert "<" not in json.dumps(blocks[1:-1])
    assert slack_blocks(Alert("h", "``` code", "error"))[1]["text"]["text"] == "```''' code```"


def test_a_mail(broken: Stream, add_connection: AddConnection) -> None:
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
    with mail() as (port, got):
        add_connection("smtp_default", conn_type="smtp", host="127.0.0.1", port=port, extra=extra)
        LanceEmailNotifier(uri=broken.uri, to=["one@example.com", "two@example.com"])(context())
    [text] = got
    message = message_from_string(text)
    subject = str(make_header(decode_header(message["Subject"])))
    assert re.sub(r"\s+", " ", subject) == "[error] Task orders_dag.stream failed, run manual"
    assert message["To"] == "one@example.com, two@example.com"
    [part] = [each for each in message.walk() if each.get_content_type() == "text/html"]
    body = part.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert "ValueError: a &lt;b&gt; &amp; c" in body.decode()
    assert f"lance-stream release {broken.uri} orders --for-good --yes" in body.decode()


def test_html_is_escaped() -> None:
    alert = Alert("<script>", "<b>", "error", log_url='"><script>')
    assert "<script>" not in email_html(alert)
    assert "<b>" not in email_html(alert)


def test_a_document_for_any_webhook(broken: Stream, add_connection: AddConnection) -> None:
    with web() as (port, got):
        extra = {"Authorization": f"Bearer {TOKEN}"}
        add_connection("http_default", conn_type="http", host="127.0.0.1", port=port, extra=extra)
        LanceWebhookNotifier(uri=broken.uri, endpoint="alerts/{{ ti.dag_id }}")(context())
    [(path, headers, said)] = got
    assert path == "/alerts/orders_dag"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert (said["severity"], said["dagId"], said["taskId"]) == ("error", "orders_dag", "stream")
    assert said["report"]["findings"][0]["code"] == "LS102"


def test_a_deadline_sends_from_the_triggerer(broken: Stream, add_connection: AddConnection) -> None:
    """As Airflow calls it: by its path, with a context that is only the run and the deadline."""
    callback = AsyncCallback(LanceWebhookNotifier, kwargs={"uri": broken.uri})
    assert DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, None, callback)  # type: ignore[arg-type]
    given = {
        "dag_run": {"dag_id": "freshness", "dag_run_id": "scheduled"},
        "deadline": {"id": "1", "deadline_time": "2026-01-01T00:00:00Z"},
    }
    with web() as (port, got):
        add_connection("http_default", conn_type="http", host="127.0.0.1", port=port)
        trigger = CallbackTrigger(callback.path, {**callback.kwargs, "context": given})

        async def run() -> list[Any]:
            return [event.payload async for event in trigger.run()]

        *_, last = asyncio.run(run())
    assert str(last["state"]) == "success", last
    assert got[0][2]["headline"] == "DAG freshness missed its deadline, run scheduled"
    assert got[0][2]["severity"] == "error"


def test_the_examples_of_the_page_can_be_typed() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/alerts.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    found: dict[str, Any] = {}
    for example in examples:
        exec(example, found)
    found["Pager"]()(context())
