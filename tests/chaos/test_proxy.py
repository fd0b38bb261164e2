"""The fault-injecting proxy: real clients before it, a real S3 server behind it."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from hashlib import md5
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from tests.support.processes import REPOSITORY, wait_for
from tests.support.proxy import Fault, Kind, Proxy, Request, dice_plan, kind_of, once
from tests.support.s3 import IMPATIENT, S3Server, s3_server

LONG = 600.0
"""Seconds that nobody waits: the test lets go."""

SOMEBODY = "AWS4-HMAC-SHA256 Credential=user/20260101/us-east-1/s3/aws4_request"
"""Nobody checks the signature, but without a name a stranger asks."""

TABLE = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    with Proxy(server.endpoint, latency=LONG, trickle=LONG) as proxy:
        yield proxy


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name in the bucket that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[http.client.HTTPConnection]:
    """Connect to the proxy; the connection is kept alive from request to request."""
    wire = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=60)
    yield wire
    wire.close()


def ask(
    wire: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    wire.request(method, path, body, {"Authorization": SOMEBODY} | names)
    answer = wire.getresponse()
    return answer, answer.read()


def said(*question: Any, **headers: str) -> tuple[int, bytes]:
    answer, body = ask(*question, **headers)
    return answer.status, body


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/lake?list-type=2&prefix=a.lance%2F_versions%2F", Kind.LIST),
        ("GET", "/lake/a.lance/_versions/1.manifest", Kind.GET_MANIFEST),
        ("PUT", "/lake/a.lance/_versions/1.manifest", Kind.PUT_MANIFEST),
        ("GET", "/lake/a.lance/_transactions/1-a.txn", Kind.GET_TRANSACTION),
        ("PUT", "/lake/a.lance/_transactions/1-a.txn", Kind.PUT_TRANSACTION),
        ("GET", "/lake/a.lance/data/a.lance", Kind.GET_DATA),
        ("PUT", "/lake/a.lance/data/a.lance", Kind.PUT_DATA),
        ("POST", "/lake/a.lance/data/a.lance?uploads", Kind.PUT_DATA),
        ("PUT", "/lake/a.lance/data/a.lance?partNumber=1&uploadId=u", Kind.PUT_DATA),
        ("PUT", "/lake/a.lance/_deletions/0-1-2.arrow", Kind.PUT_DELETION),
        ("GET", "/lake/a.lance/_indices/u/page_data.lance", Kind.GET_INDEX),
        ("HEAD", "/lake/a.lance/_versions/1.manifest", Kind.HEAD),
        ("DELETE", "/lake/a.lance/data/a.lance", Kind.DELETE),
        ("POST", "/lake?delete", Kind.DELETE),
        ("PUT", "/lake/checkpoint.reports/launch/heartbeat.json", Kind.OTHER),
        ("PUT", "/lake", Kind.OTHER),
    ],
)
def test_requests_are_told_apart_by_lances_layout(method: str, path: str, kind: Kind) -> None:
    assert kind_of(method, path) is kind


def test_s3_server_ends_when_its_owner_is_killed() -> None:
    code = (
        "from tests.support.s3 import *\nwith s3_server() as s: print(s.port, flush=True), input()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    with owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        assert listens(port)
        owner.kill()
    wait_for("the end of the server", lambda: not listens(port), seconds=20)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# ---------------------------------------------------------------------------------- plain HTTP


def test_one_connection_carries_every_sort_of_answer(
    wire: http.client.HTTPConnection, name: str
) -> None:
    path, body = f"/lake/{name}", b"0123456789" * 1000
    assert said(wire, "PUT", path, body)[0] == 200
    used = wire.sock
    assert said(wire, "GET", path) == (200, body)
    assert said(wire, "GET", path, Range="bytes=5-9") == (206, b"56789")
    answer, nothing = ask(wire, "HEAD", path)
    assert (answer.status, nothing) == (200, b"")
    assert (answer.getheader("Content-Length"), answer.getheader("ETag")) == ("10000", etag(body))
    assert said(wire, "GET", path, If_None_Match=etag(body)) == (304, b"")
    assert said(wire, "PUT", path, b"other", If_None_Match="*")[0] == 412
    assert said(wire, "GET", f"{path}-nothing")[0] == 404
    assert said(wire, "DELETE", path) == (204, b"")
    assert said(wire, "HEAD", path) == (404, b"")
    assert said(wire, "PUT", path, iter([b"in ", b"chunks"]), Expect="100-continue")[0] == 200
    assert said(wire, "GET", path) == (200, b"in chunks")
    assert wire.sock is used, "nothing broke the connection"


def etag(body: bytes) -> str:
    return f'"{md5(body).hexdigest()}"'


def test_a_multipart_upload_arrives_whole(server: S3Server, proxy: Proxy, name: str) -> None:
    from pyarrow import fs

    store = fs.S3FileSystem(
        access_key="user",
        secret_key="secret",
        endpoint_override=proxy.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )
    body = bytes(range(256)) * 50_000  # 12.8 MB, in parts of 10 MiB
    with store.open_output_stream(f"lake/{name}/data/big") as out:
        out.write(body)
    assert proxy.counts()[Kind.PUT_DATA] == 4, "begin, two parts, end"
    with store.open_input_stream(f"lake/{name}/data/big") as stored:
        assert stored.read() == body


def test_of_many_writers_that_must_not_overwrite_one_wins(proxy: Proxy, name: str) -> None:
    with ThreadPoolExecutor(32) as pool:
        said = pool.map(lambda number: create(proxy, f"/lake/{name}"), range(64))
        assert Counter(said) == {200: 1, 412: 63}


def create(proxy: Proxy, path: str) -> int:
    """Write an object if there is none, over a connection of its own; return the status."""
    wire = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=60)
    try:
        return said(wire, "PUT", path, b"mine", If_None_Match="*")[0]
    finally:
        wire.close()


def test_one_by_one_holds_up_conditional_writes_only(
    proxy: Proxy, wire: http.client.HTTPConnection, name: str
) -> None:
    path = f"/lake/{name}"
    with ThreadPoolExecutor(1) as pool:
        with proxy.one_by_one:
            writing = pool.submit(create, proxy, path)
            wait_for("the writer", lambda: bool(proxy.requests))
            assert {said(wire, "GET", path)[0] for _ in range(20)} == {404}
        assert writing.result() == 200
    assert said(wire, "GET", path) == (200, b"mine")


def test_what_a_dying_client_began_to_send_is_not_passed_on(server: S3Server, name: str) -> None:
    with Proxy(server.endpoint) as proxy:
        for rest in (
            b"Content-Length: 100\r\n\r\nhalf",
            b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf",
        ):
            with raw(proxy) as client:
                client.sendall(f"PUT /lake/{name} HTTP/1.1\r\nHost: s3\r\n".encode() + rest)
    assert proxy.requests == []


def raw(proxy: Proxy) -> socket.socket:
    host, port = proxy.endpoint.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_LATE, Fault.RESET_AFTER])
def test_a_reset_is_a_reset(proxy: Proxy, fault: Fault) -> None:
    proxy.plan = lambda request: fault
    with raw(proxy) as client:
        client.sendall(b"GET /lake HTTP/1.1\r\nHost: s3\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_slow_answer_trickles(proxy: Proxy) -> None:
    proxy.plan = lambda request: Fault.SLOW
    with raw(proxy) as client:
        client.sendall(b"GET /lake/nothing HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n")
        wait_for("the request", lambda: bool(proxy.requests))
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
        proxy.let_go.set()
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.endswith(b"</Error>")


def test_dice_are_thrown_alike_for_one_seed_and_only_for_some_kinds() -> None:
    requests = [
        Request("PUT", str(n), kind)
        for n in range(500)
        for kind in (Kind.PUT_MANIFEST, Kind.LIST, Kind.PUT_DATA)
    ]

    def drawn(seed: int) -> list[Fault | None]:
        plan = dice_plan(seed, 0.3, {Kind.PUT_MANIFEST, Kind.LIST})
        return [plan(request) for request in requests]

    assert drawn(1) == drawn(1) != drawn(2)
    struck = [r.kind for r, fault in zip(requests, drawn(1), strict=True) if fault]
    assert set(struck) == {Kind.PUT_MANIFEST, Kind.LIST}
    assert 250 < len(struck) < 350
    assert set(drawn(1)) == {None, *Fault}


# --------------------------------------------------------------------------------------- Lance


def test_lance_writes_and_reads_through_it_and_is_counted(
    server: S3Server, proxy: Proxy, name: str
) -> None:
    dataset = lance.write_dataset(
        TABLE, server.uri(name), storage_options=server.options(proxy.endpoint)
    )
    since = len(proxy.requests)
    append(dataset)
    assert proxy.counts(since) == {
        Kind.PUT_DATA: 1,
        Kind.LIST: 1,
        Kind.PUT_TRANSACTION: 1,
        Kind.PUT_MANIFEST: 1,
    }
    since = len(proxy.requests)
    assert lance.dataset(**reach(server, proxy, name)).to_table().num_rows == 6
    assert proxy.counts(since) == {Kind.LIST: 1, Kind.GET_MANIFEST: 1, Kind.GET_DATA: 2}
    assert not proxy.injected


def append(dataset: lance.LanceDataset) -> lance.LanceDataset:
    operation = lance.LanceOperation.Append(write_fragments(TABLE, dataset))
    transaction = lance.Transaction(dataset.version, operation)
    return lance.LanceDataset.commit(dataset, transaction, max_retries=0)


def reach(server: S3Server, proxy: Proxy | None, name: str) -> dict[str, Any]:
    endpoint = proxy.endpoint if proxy else None
    options = server.options(endpoint, **IMPATIENT)
    return {"uri": server.uri(name), "storage_options": options}


@pytest.mark.parametrize(
    ("fault", "lands", "sent"),
    [
        (Fault.ERROR_500, False, 1),
        (Fault.RESET_BEFORE, False, 1),
        (Fault.SLOW_DOWN_503, True, 2),  # Lance itself tries again
        (Fault.ERROR_500_AFTER, True, 1),  # Lance looks, and finds its own manifest
        (Fault.RESET_AFTER, True, 1),
    ],
)
def test_a_fault_at_the_manifest(
    server: S3Server, proxy: Proxy, name: str, fault: Fault, lands: bool, sent: int
) -> None:
    dataset = lance.write_dataset(TABLE, **reach(server, proxy, name))
    since = len(proxy.requests)
    proxy.plan = once(fault, Kind.PUT_MANIFEST)
    with nullcontext() if lands else pytest.raises(OSError, match="Error performing PUT"):
        append(dataset)
    assert proxy.injected == {fault: 1}
    assert proxy.counts(since)[Kind.PUT_MANIFEST] == sent
    assert versions(server, name) == (2 if lands else 1)


def versions(server: S3Server, name: str) -> int:
    """Return the newest version as the server has it, asked past the proxy."""
    return lance.dataset(**reach(server, None, name)).version


def test_a_patient_client_tries_again(server: S3Server, proxy: Proxy, name: str) -> None:
    options = server.options(proxy.endpoint, client_max_retries="1")
    dataset = lance.write_dataset(TABLE, server.uri(name), storage_options=options)
    since = len(proxy.requests)
    proxy.plan = once(Fault.ERROR_500, Kind.PUT_MANIFEST)
    append(dataset)
    assert proxy.counts(since)[Kind.PUT_MANIFEST] == 2
    assert versions(server, name) == 2


def test_a_late_request_is_held_until_it_is_let_go(
    server: S3Server, proxy: Proxy, name: str
) -> None:
    dataset = lance.write_dataset(TABLE, **reach(server, proxy, name))
    proxy.plan = once(Fault.LATENCY, Kind.PUT_MANIFEST)
    with ThreadPoolExecutor(1) as pool:
        landing = pool.submit(append, dataset)
        wait_for("the manifest", lambda: bool(proxy.injected))
        assert versions(server, name) == 1
        proxy.let_go.set()
        assert landing.result().version == versions(server, name) == 2


def test_a_request_that_was_given_up_lands_all_the_same(
    server: S3Server, proxy: Proxy, name: str
) -> None:
    dataset = lance.write_dataset(TABLE, **reach(server, proxy, name))
    proxy.plan = once(Fault.RESET_LATE, Kind.PUT_MANIFEST)
    with pytest.raises(OSError, match="error sending request"):
        append(dataset)
    assert versions(server, name) == 1
    proxy.let_go.set()
    wait_for("the late manifest", lambda: versions(server, name) == 2)
