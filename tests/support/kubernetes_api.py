"""Kubernetes' API for pods on loopback, as far as it is asked, and Airflow's client of it."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY

CLIENT = (
    "apache-airflow-providers-cncf-kubernetes==10.25.0",
    "kubernetes==36.0.3",
    "kubernetes-asyncio==36.1.0",
    "aiohttp-retry==2.9.1",
    "durationpy==0.11",
    "oauthlib==4.0.1",
    "requests-oauthlib==2.0.0",
    "websocket-client==1.9.2",
)
_TOOLS = REPOSITORY / ".tools"


def client_folder() -> Path:
    """Return a folder with the client, which nothing else here needs; fetch it once."""
    folder = _TOOLS / CLIENT[1].replace("==", "-")
    _TOOLS.mkdir(exist_ok=True)
    with (_TOOLS / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        uv = shutil.which("uv", path=str(_TOOLS / "uv" / "bin")) or shutil.which("uv")
        if uv is None:
            pytest.skip("uv is not on PATH: it fetches Airflow's client of Kubernetes")
        with tempfile.TemporaryDirectory(dir=_TOOLS) as name:
            options = ["--no-deps", "--python", sys.executable, "--target", f"{name}/made"]
            command = [uv, "pip", "install", "-q", *options, *CLIENT]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"uv cannot fetch {CLIENT}: {done.stderr[-500:]}")
            Path(name, "made").rename(folder)
    return folder


@contextmanager
def kubernetes_api(pods: dict[str, tuple[int, str, int]], folder: Path) -> Iterator[dict[str, str]]:
    """Serve pods; yield the environment with which Airflow's client finds them.

    :param pods: by name: the status and the pod's phase that a GET gets, the status of a DELETE.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, phase, _ = pods[self._name()]
            self._answer(code, {"status": {"phase": phase}})

        def do_DELETE(self) -> None:
            code = pods[self._name()][2]
            self._answer(code, {"status": {"phase": "Running"}})

        def _name(self) -> str:
            before, _, name = self.path.partition("?")[0].rpartition("/")
            assert before == "/api/v1/namespaces/spark/pods", self.path
            return name

        def _answer(self, code: int, document: dict[str, Any]) -> None:
            kind = {"apiVersion": "v1", "kind": "Pod" if code < 400 else "Status"}
            content = json.dumps(kind | (document if code < 400 else {"code": code})).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    named = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "somebody"}}
    config = folder / "kubeconfig"
    document = {"clusters": [named], "contexts": [context], "current-context": "here"}
    user = {"name": "somebody", "user": {"token": "a-token"}}
    config.write_text(json.dumps({**document, "users": [user]}))
    try:
        yield {
            "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
            "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(config),
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
