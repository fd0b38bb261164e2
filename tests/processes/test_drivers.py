"""A launched driver: as JSON, and asked about where it runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_lance.backends.base import Driver
from airflow_provider_lance.backends.launch import ClusterDriver, Launch, UnseenDriver, same_task
from airflow_provider_lance.drivers.local import LocalDriver
from tests.support.supervised import ELSEWHERE, Supervised, killed

from .conftest import AddConnection

APPLICATION = "application_1700000000000_0042"


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.end()


# --- A launch --------------------------------------------------------------------------------

LAUNCH = Launch(
    launch_id="20260101T120000000Z-0a1b2c3d",
    query_id="flights",
    uri="s3://bucket/flights.lance",
    checkpoint_location="s3://bucket/checkpoint",
    launched_at="2026-01-01T12:00:00.000+00:00",
    launched_by="dag/stream/run/-1#1",
    fingerprint="abc",
)
REMOTE = LocalDriver("/var/streams/flights/launch", ELSEWHERE, ELSEWHERE)
YARN = ClusterDriver("yarn", APPLICATION, spark_conn_id="my_yarn")
POD = ClusterDriver("kubernetes", "flights-driver", "spark")


@pytest.mark.parametrize("driver", [UnseenDriver(), REMOTE, YARN, POD])
def test_a_launch_travels_as_json(driver: Driver) -> None:
    launch = replace(LAUNCH, driver=driver)
    again = Launch.from_json(json.loads(json.dumps(launch.to_json())))
    assert again == launch
    assert type(again.driver) is type(driver)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (UnseenDriver(), ["heartbeat"]),
        (REMOTE, ["4711", "elsewhere", "/var/streams/flights/launch"]),
        (YARN, ["yarn", APPLICATION]),
        (POD, ["kubernetes", "flights-driver", "namespace spark"]),
    ],
)
def test_it_says_where_it_is(driver: Driver, words: list[str]) -> None:
    where = driver.where()
    assert all(word in where for word in words)


def test_an_unseen_driver_can_neither_be_asked_nor_killed() -> None:
    driver = UnseenDriver()
    assert LAUNCH.driver == driver
    assert (driver.alive(), driver.exit_status(), driver.is_ending()) == (None, None, False)
    assert (driver.stop("me"), driver.kill()) == (False, False)
    assert driver.log() is None
    assert (driver.is_here, driver.polls_remotely) == (False, False)


@pytest.mark.parametrize("odd", [None, "pid 7", {"folder": "/x"}])
def test_a_launch_reads_its_driver_only_under_the_name_of_its_kind(odd: object) -> None:
    assert Launch.from_json(LAUNCH.to_json() | {"driver": odd}) == LAUNCH


def test_a_driver_of_another_host() -> None:
    assert REMOTE.alive() is None
    assert REMOTE.kill() is False


def test_a_driver_here(stand: Supervised) -> None:
    process = stand.process()
    driver = stand.local(process)
    assert driver.alive() is True
    assert driver.exit_status() is None
    assert driver.kill() is True
    assert process.wait() == -9
    assert driver.alive() is False
    assert driver.kill() is False
    stand.folder.write_exit(-9)
    assert driver.exit_status() == -9


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("dag/task/run/-1#1", "dag/task/run/-1#1", True),
        ("dag/task/run/-1#1", "dag/task/run/-1#12", True),
        ("dag/task/run/-1#1", "dag/task/run/0#1", False),
        ("dag/task/run/-1#1", "dag/task/run2/-1#1", False),
        ("dag/task/manual#1/-1#1", "dag/task/manual#2/-1#1", False),
        ("dag/task/manual#1/-1#1", "dag/task/manual#1/-1#2", True),
        ("dag/task/run/-1#1", "", False),
        ("", "dag/task/run/-1#1", False),
        ("", "", False),
    ],
)
def test_tries_of_one_task(one: str, other: str, same: bool) -> None:
    assert same_task(one, other) is same


# --- YARN ------------------------------------------------------------------------------------


class ResourceManager:
    """YARN's REST API on loopback, as far as it is asked: one application's state, and its end."""

    def __init__(self) -> None:
        self.state, self.final_status, self.diagnostics = "RUNNING", "UNDEFINED", ""
        self.code = self.kill_code = 200
        self.seen: list[tuple[str, str, Any]] = []
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                manager.seen.append(("GET", self.path, None))
                app = {
                    "id": APPLICATION,
                    "state": manager.state,
                    "finalStatus": manager.final_status,
                    "diagnostics": manager.diagnostics,
                }
                known = self.path == f"/ws/v1/cluster/apps/{APPLICATION}"
                self.answer(manager.code if known else 404, {"app": app})

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                manager.seen.append(("PUT", self.path, body))
                if manager.kill_code == 200:
                    manager.state, manager.final_status = body["state"], "KILLED"
                self.answer(manager.kill_code, body)

            def answer(self, code: int, document: Any) -> None:
                content = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Answer nobody from now on."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def yarn(add_connection: AddConnection, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = ResourceManager()
    extra = {"yarn_resourcemanager_webapp_address": made.address, "deploy-mode": "cluster"}
    add_connection("my_yarn", conn_type="spark", host="yarn", extra=extra)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("state", "final_status", "alive", "exit_status"),
    [
        ("NEW", "UNDEFINED", True, None),
        ("NEW_SAVING", "UNDEFINED", True, None),
        ("SUBMITTED", "UNDEFINED", True, None),
        ("ACCEPTED", "UNDEFINED", True, None),
        ("RUNNING", "UNDEFINED", True, None),
        ("FINISHED", "SUCCEEDED", False, 0),
        ("FINISHED", "FAILED", False, 1),
        ("FAILED", "FAILED", False, 1),
        ("KILLED", "KILLED", False, 1),
    ],
)
def test_yarn_tells_whether_a_driver_lives(
    yarn: ResourceManager, state: str, final_status: str, alive: bool, exit_status: int | None
) -> None:
    yarn.state, yarn.final_status = state, final_status
    assert YARN.alive() is alive
    assert yarn.seen == [("GET", f"/ws/v1/cluster/apps/{APPLICATION}", None)]
    assert YARN.exit_status() == exit_status


def test_yarn_ends_exactly_this_driver(yarn: ResourceManager) -> None:
    assert YARN.kill() is True
    puts = [each for each in yarn.seen if each[0] == "PUT"]
    assert puts == [("PUT", f"/ws/v1/cluster/apps/{APPLICATION}/state", {"state": "KILLED"})]
    assert YARN.alive() is False


@pytest.mark.parametrize("code", [401, 403, 500])
def test_a_kill_that_yarn_refuses_is_no_kill(yarn: ResourceManager, code: int) -> None:
    yarn.kill_code = code
    assert YARN.kill() is False


@pytest.mark.parametrize(
    ("state", "diagnostics", "said"),
    [
        ("RUNNING", "", ""),
        ("KILLED", "Killed by user dr.who.", "YARN says KILLED: Killed by user dr.who."),
        (
            "FAILED",
            "AM Container exited with  exitCode: -1000\nDiagnostics: No space available in any of "
            "the local directories\n",
            "YARN says FAILED: AM Container exited with exitCode: -1000 Diagnostics: No space "
            "available in any of the local directories",
        ),
        ("FAILED", "", "YARN says FAILED"),
    ],
)
def test_yarn_says_how_a_driver_ended_and_where_its_log_is(
    yarn: ResourceManager, state: str, diagnostics: str, said: str
) -> None:
    yarn.state, yarn.diagnostics = state, diagnostics
    log = f"; its log: `yarn logs -applicationId {APPLICATION}`"
    assert YARN.end_note() == (f"{said}{log}" if said else "")


def test_yarn_is_asked_with_the_oldest_spark_provider_too(
    yarn: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook of 6.1 has no public method for it."""
    monkeypatch.delattr(SparkSubmitHook, "query_yarn_application_status")
    assert YARN.alive() is True


def test_an_application_that_has_ended_is_not_killed(yarn: ResourceManager) -> None:
    yarn.state, yarn.final_status = "FINISHED", "SUCCEEDED"
    assert YARN.kill() is False
    assert "PUT" not in [method for method, _, _ in yarn.seen]


@pytest.mark.parametrize("code", [401, 404, 500, 503])
def test_yarn_that_answers_something_else_tells_nothing(yarn: ResourceManager, code: int) -> None:
    yarn.code = code
    assert YARN.alive() is None


def test_an_application_that_yarn_does_not_know(yarn: ResourceManager) -> None:
    assert ClusterDriver("yarn", "application_9_9", spark_conn_id="my_yarn").alive() is None


def test_yarn_cannot_be_reached(
    add_connection: AddConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    gone = ResourceManager()
    gone.close()
    extra = {"yarn_resourcemanager_webapp_address": gone.address, "deploy-mode": "cluster"}
    add_connection("my_yarn", conn_type="spark", host="yarn", extra=extra)
    assert YARN.alive() is None
    assert YARN.exit_status() is None
    assert YARN.kill() is False, "nobody was asked"


@pytest.mark.parametrize("extra", [{}, {"yarn_resourcemanager_webapp_address": ""}])
def test_a_connection_that_does_not_say_where_yarn_is(
    add_connection: AddConnection, extra: dict[str, str]
) -> None:
    add_connection("my_yarn", conn_type="spark", host="yarn", extra=extra)
    assert YARN.alive() is None


def test_a_connection_that_is_gone(add_connection: AddConnection) -> None:
    assert YARN.alive() is None


def test_kubernetes_without_its_provider(add_connection: AddConnection) -> None:
    """Whoever hands drivers to Kubernetes has the provider; a worker without it can tell nothing.

    Where the provider is installed there is no cluster behind it here, which tells as little.
    """
    add_connection("spark_default", conn_type="spark", host="k8s://https://127.0.0.1:1")
    assert POD.alive() is None
    assert POD.exit_status() is None
    assert POD.kill() is False


def test_a_driver_that_was_killed_is_gone(stand: Supervised) -> None:
    process = stand.process()
    local = stand.local(process)
    killed(process)
    assert local.alive() is False
