"""Where a station's dataset is: on disk, or on an S3 server behind a proxy that injects faults."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_lance.streaming.dataset import LanceDatasetPort, open_dataset
from tests.chaos.plan import Faults, StationPlan, Store, Strike
from tests.support.proxy import Fault, Proxy, Request, no_fault
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

    def settle(self) -> None:
        """Wait until a request that was held back has been passed on."""
        if self.proxy:
            time.sleep(self.proxy.latency)

    def keep(self) -> None:
        """Copy a dataset of the S3 server beside the rest of the station."""
        if self.server is None:
            return
        from pyarrow import fs

        from airflow_provider_lance.streaming.files import open_files

        store = open_files(self.uri, self.server.options())
        fs.copy_files(store._root, str(self.folder / "table.lance"), source_filesystem=store._fs)


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
            server.uri(f"{plan.name}.lance"),
            folder,
            server.options(proxy.endpoint, **impatience),
            proxy,
            server,
        )
