"""Where a station's dataset is: on disk, or on an S3 server behind a proxy that injects faults."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from tests.chaos.faults import Faults, Strike
from tests.chaos.life import LONGEST_SECONDS, Life
from tests.chaos.plan import StationPlan, Store
from tests.support.proxy import Fault, Kind, Plan, Proxy, Request, no_fault
from tests.support.s3 import IMPATIENT, S3Server


class FaultPlan:
    """A round's faults, asked by the proxy once for each request."""

    def __init__(self, faults: Faults) -> None:
        self._share, self._dice = faults.share, random.Random(faults.seed)
        self._strikes = {(each.kind, each.nth): each for each in faults.strikes}
        self._seen: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        self._seen[request.kind] += 1
        strike: Strike | None = self._strikes.get((request.kind, self._seen[request.kind]))
        if strike:
            return strike.fault
        # Drawn for every request, so that what happens to one does not hang on the others.
        hit, fault = self._dice.random() < self._share, self._dice.choice(list(Fault))
        return fault if hit else None


def _holding(life: Life) -> Plan:
    order, held = Path(f"{life.sign}.hold"), Path(f"{life.sign}.held")

    def plan(request: Request) -> Fault | None:
        if request.kind is not Kind.PUT_MANIFEST or not order.exists():
            return None
        order.unlink()
        held.touch()
        return Fault.LATENCY

    return plan


@dataclass
class Place:
    """A station's dataset: its URI, and the ways to it.

    ``options`` lead through the proxy, where all that is written must pass: the S3 server tests and
    sets a conditional write in two steps, and the proxy lets them pass one by one.
    """

    uri: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    proxy: Proxy | None = None
    server: S3Server | None = None
    left: list[str] = field(default_factory=list)
    """URIs of datasets that the station has left behind."""

    def move_to(self, uri: str) -> None:
        """Have the dataset somewhere else from now on."""
        self.left.append(self.uri)
        self.uri = uri

    def open(self) -> LanceDatasetPort:
        """Open the newest version as a driver does."""
        return open_dataset(self.uri, self.options)

    def open_unharmed(self) -> LanceDatasetPort:
        """Open the newest version past the proxy; to read, never to write."""
        return open_dataset(self.uri, self.server.options() if self.server else None)

    @property
    def injected(self) -> Counter[str]:
        """Return how many faults of each kind were injected so far."""
        return Counter(self.proxy.injected) if self.proxy else Counter()

    @contextmanager
    def attacked(self, faults: Faults | None) -> Iterator[None]:
        """Let the store fail as planned while the block runs, and settle what is late after it."""
        if self.proxy is None or faults is None:
            yield
            return
        plan = FaultPlan(faults)
        self.proxy.latency = faults.latency
        self.proxy.plan = plan
        try:
            yield
        finally:
            self.proxy.plan = no_fault

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Let nothing fail while the block runs."""
        plan = self.proxy.plan if self.proxy else no_fault
        if self.proxy:
            self.proxy.plan = no_fault
        try:
            yield
        finally:
            if self.proxy:
                self.proxy.plan = plan

    @contextmanager
    def holding(self, life: Life) -> Iterator[None]:
        """Hold back the manifest that the driver's orders name, until the block is left.

        On disk the interposer does it, before a store the proxy does.
        """
        proxy, latency = self.proxy, self.proxy.latency if self.proxy else 0.0
        if proxy:
            proxy.latency = LONGEST_SECONDS
            proxy.plan = _holding(life)
        try:
            yield
        finally:
            life.let_publish()
            if proxy:
                proxy.plan, proxy.latency = no_fault, latency
                waited, proxy.let_go = proxy.let_go, threading.Event()
                waited.set()

    def settle(self) -> None:
        """Wait until a request that was held back has been passed on."""
        if self.proxy:
            time.sleep(self.proxy.latency)

    def keep(self) -> None:
        """Copy the datasets of the S3 server beside the rest of the station."""
        if self.server is None:
            return
        from pyarrow import fs

        from airflow_provider_lance.protocol.files import open_files

        for uri in (*self.left, self.uri):
            store, copy = open_files(uri, self.server.options()), self.folder / Path(uri).name
            with suppress(FileNotFoundError):  # no driver has made it yet
                fs.copy_files(store._root, str(copy), source_filesystem=store._fs)


@contextmanager
def place(plan: StationPlan, folder: Path, server: S3Server | None) -> Iterator[Place]:
    """Make room for a station's dataset; the dataset itself is the first driver's to make."""
    if plan.store is Store.DISK:
        yield Place(str(folder / "table.lance"), folder)
        return
    assert server is not None
    with Proxy(server.endpoint) as proxy:
        impatience = IMPATIENT if plan.impatient else {}
        yield Place(
            server.uri(f"{plan.name}/table.lance"),
            folder,
            server.options(proxy.endpoint, **impatience),
            proxy,
            server,
        )
