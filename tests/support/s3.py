"""An S3 server on loopback that starts and ends with a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.processes import wait_for

SECRET = "a-secret-that-must-not-be-seen"
USER, REGION = "user", "us-east-1"
IMPATIENT = {
    "client_max_retries": "0",
    "client_retry_timeout": "2",
    "timeout": "20s",
}
"""Storage options with which Lance's client does not try again."""

_SERVE = """
import os, sys, threading
from moto.server import main

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main(sys.argv[1:])
"""
"""The server ends when its input does: also with a process that was killed."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens, and the bucket that was made in it."""

    host: str
    port: int
    bucket: str

    @property
    def endpoint(self) -> str:
        """Return the server's address as a URL."""
        return f"http://{self.host}:{self.port}"

    def options(self, endpoint: str | None = None, **more: str) -> dict[str, str]:
        """Return storage options for Lance that reach it, straight or through another endpoint."""
        return {
            "aws_access_key_id": USER,
            "aws_secret_access_key": SECRET,
            "aws_endpoint": endpoint or self.endpoint,
            "aws_region": REGION,
            "allow_http": "true",
            **more,
        }

    def uri(self, name: str) -> str:
        """Return the URI of something in the bucket."""
        return f"s3://{self.bucket}/{name}"


@contextmanager
def s3_server(bucket: str = "lake", *, checks_keys: bool = False) -> Iterator[S3Server]:
    """Run an S3 server with one bucket; everything in it is lost at the end.

    :param checks_keys: it knows no access key, so it refuses everything once the bucket is made.
    """
    host, port = free_address()
    command = [sys.executable, "-c", _SERVE, "-H", host, "-p", str(port)]
    quiet = subprocess.DEVNULL
    environment = {**os.environ, **({"INITIAL_NO_AUTH_ACTION_COUNT": "2"} if checks_keys else {})}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            server = S3Server(host, port, bucket)
            wait_for("the S3 server", lambda: process.poll() is not None or listens(server))
            assert process.poll() is None, f"the S3 server ended with {process.returncode}"
            make_bucket(server)
            yield server
        finally:
            process.kill()


def free_address() -> tuple[str, int]:
    """Return a host and port of loopback at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    return host, port


def listens(server: S3Server) -> bool:
    """Return whether it accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex((server.host, server.port)) == 0


def make_bucket(server: S3Server) -> None:
    """Make the server's bucket."""
    from pyarrow import fs

    fs.S3FileSystem(
        access_key=USER,
        secret_key=SECRET,
        endpoint_override=f"{server.host}:{server.port}",
        scheme="http",
        region=REGION,
        allow_bucket_creation=True,
    ).create_dir(server.bucket)
