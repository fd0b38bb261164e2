"""A real Airflow of one's own: scheduler, DAG processor, triggerer and API server on loopback."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).parents[2]
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
LOCKED_TRIES = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(home: Path, port: int = 0, dags: Path = REPOSITORY / "dags") -> dict[str, str]:
    """Return the environment of an Airflow with an embedded database, by default the examples."""
    stores = {"base_uri": str(home / "data"), "checkpoint_root": str(home / "checkpoints")}
    connections = {
        "LANCE_DEFAULT": {"conn_type": "lance", "extra": stores},
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
    }
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__INTERNAL_API_SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__EXPOSE_STACKTRACE": "True",  # an answer with status 500 says why
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        # All components write into one SQLite file; its 5 seconds of patience are few when busy.
        # A reader that begins to write after another has written is refused at once: see `call`.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=20",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections.items()},
    }


@dataclass
class Airflow:
    """Start all components in a home folder; end them, and all they started, at the end.

    ``changes`` are environment variables on top of :func:`settings`.
    """

    home: Path
    port: int = field(default_factory=free_port)
    dags: Path = REPOSITORY / "dags"
    changes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = settings(self.home, self.port, self.dags) | dict(self.changes)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""

    def __enter__(self) -> Self:
        try:
            self._command("db", "migrate")
            for name in COMPONENTS:
                self._processes[name] = self._start(name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def log(self, name: str) -> Path:
        """Return the file that holds a component's output."""
        return self.home / f"{name}.log"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the REST API and return its JSON; call again what a locked SQLite file refused.

        :raises urllib.error.HTTPError: with the answer's text as a note.
        """
        if not self._token:
            self._token = self._request("GET", "/auth/token", None)["access_token"]
        for left in reversed(range(LOCKED_TRIES)):
            try:
                return self._request(method, f"/api/v2{path}", body)
            except urllib.error.HTTPError as error:
                error.add_note(told := error.read().decode(errors="replace"))
                if not left or "database is locked" not in told:
                    raise
            time.sleep(0.5)
        raise AssertionError("unreachable")

    def wait_for(self, what: str, condition: Callable[[], Any], seconds: float = 180) -> Any:
        """Wait for something true; a component that died, or time run out, fails with its log."""
        deadline = time.monotonic() + seconds
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {self._tail(name)}")
            try:
                if found := condition():
                    return found
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass  # the API server is not up yet, or busy
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds} s in vain for {what}; see {self.home}")
            time.sleep(0.5)

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        """Start a DAG run and return its id."""
        self.wait_for(f"DAG {dag_id}", lambda: self.has_dag(dag_id))
        body = {"logical_date": None, "conf": conf}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a DAG run."""
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the task instances of a DAG run by task id."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {each["task_id"]: each for each in found["task_instances"]}

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Set a task's state by hand, as somebody does on the grid."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.call("PATCH", path, {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task, whatever its state, so that it runs again."""
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
        }
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> str:
        """Return what one try of a task has logged, one event a line."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        content = self.call("GET", f"{path}?full_content=true")["content"]
        return "\n".join(_line(each) for each in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom value, ``None`` if there is none."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            return self.call("GET", path)["value"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def restart(self, name: str, sign: signal.Signals = signal.SIGTERM) -> None:
        """End a component by a signal, wait for its end, start it again.

        SIGKILL goes to all its processes, as when a container dies; SIGTERM to the first alone.
        """
        process = self._processes[name]
        if sign is signal.SIGKILL:
            os.killpg(process.pid, sign)
        else:
            process.send_signal(sign)
        process.wait(60)
        self._processes[name] = self._start(name)

    def has_dag(self, dag_id: str) -> bool:
        """Tell whether the DAG processor has found a DAG."""
        return any(each["dag_id"] == dag_id for each in self.call("GET", "/dags")["dags"])

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {self._token}"} if self._token else {}),
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def _command(self, *arguments: str) -> None:
        log = self.log(arguments[0])
        with log.open("wb") as output:
            status = subprocess.run(
                [sys.executable, "-m", "airflow", *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
        if status:
            raise RuntimeError(f"airflow {' '.join(arguments)} failed: {self._tail(arguments[0])}")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow", name],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _tail(self, name: str) -> str:
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-15:])

    def _end(self) -> None:
        for sign, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            for process in self._processes.values():
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + seconds
            for process in self._processes.values():
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue


def _line(event: str | dict[str, Any]) -> str:
    """Return a log event with its error, if it has one; Airflow keeps that apart."""
    if isinstance(event, str):
        return event
    errors = [
        f"{each['exc_type']}: {each['exc_value']}" for each in event.get("error_detail") or ()
    ]
    return " ".join([str(event.get("timestamp", "")), str(event["event"]), *errors])
