"""The committer on an S3 server behind a proxy that injects one fault after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from tests.support.drivers import SCHEMA, SparkLike, World, epoch_rows
from tests.support.processes import wait_for
from tests.support.proxy import Fault, Kind, Plan, Proxy, Request, no_fault, once
from tests.support.s3 import IMPATIENT, S3Server, s3_server

LONG = 600.0
"""Seconds that nobody waits: the test lets go."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name in the bucket that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def world(server: S3Server, proxy: Proxy, name: str) -> World:
    """Make an empty dataset; drivers reach it through the proxy, the test looks past it."""
    uri, straight = server.uri(name), server.options()
    through = server.options(proxy.endpoint, **IMPATIENT)
    lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=straight)

    def write(port: Any, rows: list[dict[str, int]]) -> list[Any]:
        assert isinstance(port, LanceDatasetPort)
        return list(write_fragments(pa.Table.from_pylist(rows, SCHEMA), port.dataset))

    return World(
        open=lambda: open_dataset(uri, through),
        fragments=write,
        keys=lambda rows: pa.Table.from_pylist(rows, SCHEMA).select(["id"]),
        rows=lambda: lance.dataset(uri, storage_options=straight).to_table().to_pylist(),
        compact=lambda: None,
        clean_up=lambda: None,
    )


def expect_epochs(world: World, count: int) -> None:
    wanted = Counter(row["id"] for number in range(count) for row in epoch_rows(number))
    assert Counter(row["id"] for row in world.rows()) == wanted


@pytest.mark.parametrize("kind", [Kind.PUT_TRANSACTION, Kind.PUT_MANIFEST, Kind.LIST])
@pytest.mark.parametrize("fault", list(Fault))
def test_no_fault_in_a_commit_doubles_or_loses_its_epoch(
    server: S3Server, name: str, fault: Fault, kind: Kind
) -> None:
    with Proxy(server.endpoint, latency=0.1, trickle=0.1) as proxy:
        there = world(server, proxy, name)
        driver = SparkLike(there, {})
        driver.step()
        proxy.plan = once(fault, kind)
        assert driver.step().decision is Decision.FULL_COMMIT
        assert proxy.injected == {fault: 1}
        driver.step()
        assert driver.committer.release()
    expect_epochs(there, 3)  # after the end of the proxy: nothing is on its way any more


@pytest.mark.parametrize("lands", [True, False])
def test_a_late_manifest_of_a_dead_driver_is_seen_or_refused(
    server: S3Server, name: str, lands: bool
) -> None:
    with Proxy(server.endpoint, latency=LONG) as proxy:
        there = world(server, proxy, name)
        log: dict[str, int] = {}
        dead = SparkLike(there, log, run_id="dead")
        dead.step()
        proxy.plan = cut_off_after_a_late_manifest()
        with pytest.raises(TransientError):
            dead.step()
        proxy.plan = no_fault
        if lands:  # before the claim; else at the end, after the barrier
            proxy.let_go.set()
            wait_for("the late manifest", lambda: len(there.rows()) == 6)
        fresh = SparkLike(there, log, run_id="fresh")
        assert (fresh.step().decision is Decision.FULL_COMMIT) is not lands
        fresh.step()
    expect_epochs(there, 3)


def cut_off_after_a_late_manifest() -> Plan:
    """Plan the end of a driver: its manifest is held back, then nothing gets through."""
    late = once(Fault.RESET_LATE, Kind.PUT_MANIFEST)
    cut = False

    def plan(request: Request) -> Fault | None:
        nonlocal cut
        if cut:
            return Fault.RESET_BEFORE
        cut = request.kind is Kind.PUT_MANIFEST
        return late(request)

    return plan
