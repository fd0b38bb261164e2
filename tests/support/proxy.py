"""A small HTTP proxy before an S3 server: counts requests by kind and injects faults on order."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.lance_requests import Kind, Request, kind_of

CONNECTION_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
"""Each side of the proxy has a connection of its own. Signatures do not cover these."""

PIECES = 10
"""Of an answer that trickles."""


class Fault(StrEnum):
    """What can happen to one request."""

    LATENCY = "latency"
    """It is passed on late."""
    ERROR_500 = "error-500"
    """Answered with 500; the server has not seen it."""
    SLOW_DOWN_503 = "slow-down-503"
    """Answered with 503, as a throttling store does; the server has not seen it."""
    ERROR_500_AFTER = "error-500-after"
    """The server performed it, and the answer is 500."""
    RESET_BEFORE = "reset-before"
    """The connection is reset; the server has not seen it."""
    RESET_LATE = "reset-late"
    """The connection is reset, and the server performs it when the client has given it up."""
    RESET_AFTER = "reset-after"
    """The server performed it, and the connection is reset before the answer."""
    SLOW = "slow"
    """The answer trickles."""


Plan = Callable[[Request], Fault | None]


def no_fault(request: Request) -> Fault | None:
    """Let everything pass: the plan of a proxy that only counts."""
    return None


def once(fault: Fault, kind: Kind) -> Plan:
    """Plan one fault, for the first request of a kind."""
    left = [fault]
    return lambda request: left.pop() if left and request.kind is kind else None


def dice_plan(
    seed: int, share: float, kinds: Collection[Kind], faults: Collection[Fault] = tuple(Fault)
) -> Plan:
    """Plan a fault for a share of the requests of these kinds, drawn from a seeded generator."""
    dice, choice = random.Random(seed), sorted(faults)

    def plan(request: Request) -> Fault | None:
        if request.kind not in kinds or dice.random() >= share:
            return None
        return dice.choice(choice)

    return plan


class Proxy:
    """Forwards to ``upstream`` while its block runs; ``plan`` may be replaced at any time.

    One plan is asked for one request at a time, in the order of arrival. So are writes that must
    not overwrite (``If-None-Match: *``) passed on: a store checks and writes such an object in one
    step, the S3 server of the tests in two.
    """

    def __init__(
        self,
        upstream: str,
        plan: Plan = no_fault,
        *,
        latency: float = 0.05,
        trickle: float = 0.2,
    ) -> None:
        """Bind a port of loopback.

        :param upstream: the server's URL, without a path.
        :param latency: seconds that :attr:`Fault.LATENCY` and :attr:`Fault.RESET_LATE` hold a
            request back.
        :param trickle: seconds over which :attr:`Fault.SLOW` spreads an answer.

        Nothing waits any longer once ``let_go`` is set, which the end of the block does, too.
        """
        self.plan = plan
        self.latency, self.trickle = latency, trickle
        self.requests: list[Request] = []
        self.injected: Counter[Fault] = Counter()
        self.one_by_one = threading.Lock()
        self.let_go = threading.Event()
        self._upstream = urlsplit(upstream)
        self._judging = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="proxy", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()  # waits for the threads of all connections

    @property
    def endpoint(self) -> str:
        """Return the URL to give to clients."""
        return "http://{}:{}".format(*self._server.server_address)

    def counts(self, since: int = 0) -> Counter[Kind]:
        """Count requests by kind, of all or from a place in ``requests`` on."""
        return Counter(request.kind for request in self.requests[since:])

    def judge(self, request: Request) -> Fault | None:
        """Note a request; return what shall happen to it."""
        with self._judging:
            self.requests.append(request)
            fault = self.plan(request)
            if fault:
                self.injected[fault] += 1
            return fault

    def connect(self) -> http.client.HTTPConnection:
        """Return a fresh connection to the server."""
        return http.client.HTTPConnection(str(self._upstream.hostname), self._upstream.port)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = False

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End connections that clients keep alive."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client; answers its requests until one of them breaks it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException):
            self._reset()  # the client went away, or the server did

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self._body()
        request = Request(self.command, self.path, kind_of(self.command, self.path))
        fault = proxy.judge(request)
        match fault:
            case Fault.RESET_BEFORE:
                return self._reset()
            case Fault.ERROR_500:
                return self._refuse(500, "InternalError")
            case Fault.SLOW_DOWN_503:
                return self._refuse(503, "SlowDown")
            case Fault.RESET_LATE:
                self._reset()
                proxy.let_go.wait(proxy.latency)
                self._forward(body)
                return None
            case Fault.LATENCY:
                proxy.let_go.wait(proxy.latency)
        status, headers, answer = self._forward(body)
        match fault:
            case Fault.RESET_AFTER:
                return self._reset()
            case Fault.ERROR_500_AFTER:
                return self._refuse(500, "InternalError")
            case Fault.SLOW:
                return self._answer(status, headers, answer, seconds=proxy.trickle)
        return self._answer(status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _in_turn(self) -> contextlib.AbstractContextManager[object]:
        alone = self.headers.get("If-None-Match") == "*"
        return self.server.proxy.one_by_one if alone else contextlib.nullcontext()

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return b"".join(self._chunks())
        return self._read(int(self.headers.get("Content-Length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().split(b";")[0], 16):
            yield self._read(size)
            self._line()
        while self._line().strip():
            pass  # trailers

    def _read(self, size: int) -> bytes:
        """Read it all: what a dying client began to send is no request."""
        read = self.rfile.read(size)
        if len(read) < size:
            raise ConnectionError
        return read

    def _line(self) -> bytes:
        line = self.rfile.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError
        return line

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = self.server.proxy.connect()
        with contextlib.closing(upstream), self._in_turn():
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in CONNECTION_HEADERS:
                    upstream.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, seconds: float = 0
    ) -> None:
        known = {name.lower(): value for name, value in headers}
        kept = [header for header in headers if header[0].lower() not in CONNECTION_HEADERS]
        if self.command == "HEAD":  # the length is the object's, and no body follows
            kept.append(("Content-Length", known.get("content-length", "0")))
        elif status not in (204, 304):
            kept.append(("Content-Length", str(len(body))))
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in kept]
        answer = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        pieces = PIECES if seconds else 1
        size = -(-len(answer) // pieces)
        for start in range(0, len(answer), size):
            if seconds:
                self.server.proxy.let_go.wait(seconds / pieces)
            self.wfile.write(answer[start : start + size])
            self.wfile.flush()

    def _refuse(self, status: int, code: str) -> None:
        xml = f"<Error><Code>{code}</Code><Message>on order</Message></Error>".encode()
        body = b"" if self.command == "HEAD" else xml
        self._answer(status, [("Content-Type", "application/xml")], body)

    def finish(self) -> None:
        """Close what a reset has not closed already."""
        with contextlib.suppress(OSError):
            super().finish()

    def _reset(self) -> None:
        """Close at once, with RST: what was not sent is lost, and the client sees a reset."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())
