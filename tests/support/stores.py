"""Stores that fail in one certain way: one that never answers, one that always gives one answer."""

from __future__ import annotations

import shlex
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def hanging_store() -> Iterator[str]:
    """Listen, accept and never answer; return the endpoint."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        held: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    held.append(listening.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            for each in held:
                each.close()


def free_endpoint() -> str:
    """Return an endpoint at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def refusing_store(status: int, code: str, message: str) -> Iterator[str]:
    """Answer every request with one of S3's errors; return the endpoint."""
    body = (
        f"<Error><Code>{code}</Code><Message>{message}</Message>"
        "<Token-0>a-secret-that-must-not-be-seen</Token-0></Error>"
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with _served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def untrusted_store(folder: Path) -> Iterator[str]:
    """Speak TLS with a certificate that nobody has signed; return the endpoint."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {certificate}"
    subprocess.run([*shlex.split(made), "-subj", "/CN=localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with _served(server) as served:
        yield f"https://localhost:{served.server_address[1]}"


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a handshake that failed."""


@contextmanager
def _served(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
