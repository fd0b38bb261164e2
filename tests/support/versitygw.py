"""versitygw, an S3 server over a folder: built once by Go, on loopback, gone with its test."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import REPOSITORY, wait_for
from tests.support.s3 import REGION, SECRET, USER, S3Server, free_address, listens, make_bucket

VERSION = os.environ.get("VERSITYGW", "v1.8.0")
GUEST = "guest"
_TOOLS = REPOSITORY / ".tools"


class GoUnavailableError(Exception):
    """There is no Go, or it cannot build the program."""


@contextmanager
def versitygw(folder: Path, bucket: str = "lake") -> Iterator[S3Server]:
    """Serve a folder with one bucket.

    Its objects are files below ``folder/buckets``. Unlike ``moto`` it checks signatures and
    policies, and it checks and writes an object in one step if the request has a condition. Beside
    the owner it knows a user ``GUEST`` with the same secret, whom a bucket's policy may let in.

    :raises GoUnavailableError: it is not built yet, and cannot be.
    """
    host, port = free_address()
    buckets, sidecar = folder / "buckets", folder / "sidecar"
    buckets.mkdir(parents=True)
    sidecar.mkdir()
    (folder / "users").mkdir()
    guest = {"access": GUEST, "secret": SECRET, "role": "user"}
    (folder / "users/users.json").write_text(json.dumps({"accessAccounts": {GUEST: guest}}))
    log = folder / "versitygw.log"
    command = [
        *(_program(), "--port", f"{host}:{port}", "--region", REGION, "--quiet"),
        *("--access", USER, "--secret", SECRET, "--iam-dir", str(folder / "users")),
        *("posix", "--sidecar", str(sidecar), str(buckets)),
    ]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            server = S3Server(host, port, bucket)
            wait_for("versitygw", lambda: process.poll() is not None or listens(server))
            assert process.poll() is None, log.read_text()[-4000:]
            make_bucket(server)
            yield server
        finally:
            process.kill()


def _program() -> str:
    """Return the path of the program; build it where it is not here yet."""
    program = _TOOLS / f"versitygw-{VERSION}" / "versitygw"
    _TOOLS.mkdir(exist_ok=True)
    with (_TOOLS / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return str(program)
        if shutil.which("go") is None:
            raise GoUnavailableError("Go (go) is not on PATH: it builds versitygw")
        with tempfile.TemporaryDirectory(dir=_TOOLS) as name:
            done = subprocess.run(
                ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
                env={**os.environ, "GOBIN": name},
                check=False,
                capture_output=True,
                text=True,
                timeout=500,
            )
            if done.returncode:
                raise GoUnavailableError(f"Go cannot build {VERSION}: {done.stderr[-500:]}")
            program.parent.mkdir(exist_ok=True)
            Path(name, "versitygw").rename(program)
    return str(program)
