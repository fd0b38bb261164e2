"""Drivers without Spark whose epochs write side tables, and a store that ends them at a commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import QUERY, QUICK

MAIN = "memory://orders"
DIGEST = "0" * 64
Rows = dict[str, list[dict[str, int]]]


class Crash(BaseException):
    """The process is gone: nothing below may catch it."""


@dataclass
class Store:
    """Datasets in memory by URI; ``crash_at`` counts commits down, of whichever dataset."""

    datasets: dict[str, InMemoryDataset] = field(default_factory=dict)
    crash_at: int | None = None
    after: bool = False
    """Whether the commit lands before the process ends."""
    commits: int = 0

    def __post_init__(self) -> None:
        self.create(MAIN)

    def create(self, uri: str) -> None:
        self.datasets[uri] = _Dataset(uri, self)

    def open(self, uri: str) -> DatasetPort:
        if uri not in self.datasets:
            raise DatasetNotFoundError(f"no dataset at {uri}")
        return self.datasets[uri].open()

    def open_or_create(self, uri: str) -> DatasetPort:
        if uri not in self.datasets:
            self.create(uri)
        return self.open(uri)

    def rows(self, uri: str) -> Counter[int]:
        found = self.datasets.get(uri)
        return Counter(row["id"] for row in found.rows()) if found else Counter()


class _Dataset(InMemoryDataset):
    def __init__(self, uri: str, store: Store) -> None:
        super().__init__(uri)
        self._store = store

    def commit(self, read_version: int, change: Any, properties: Any, base: Any = None) -> int:
        number, self._store.commits = self._store.commits, self._store.commits + 1
        if number == self._store.crash_at and not self._store.after:
            raise Crash
        landed = super().commit(read_version, change, properties, base)
        if number == self._store.crash_at:
            raise Crash
        return landed


def uri_of(name: str) -> str:
    return f"{MAIN}.{name}"


def rows_of(epoch_id: int) -> Rows:
    """Return what an epoch sends: always something to the own table, at times to others."""
    names = [
        "",
        *(name for n, name in ((2, "two"), (3, "three"), (5, "five")) if epoch_id % n == 1),
    ]
    return {name: [{"id": epoch_id * 10 + at} for at in range(2)] for name in names}


class SideDriver:
    """A driver as Spark would run it; ``log`` has the highest epoch planned and done."""

    def __init__(
        self,
        store: Store,
        log: dict[str, int],
        *,
        digest: str = DIGEST,
        checkpoint_id: str = "checkpoint",
        policy: CommitPolicy | None = None,
        expected: Callable[[str], str | None] = uri_of,
        divide: Callable[[int], Rows] = rows_of,
        write: Callable[[DatasetPort, list[dict[str, int]]], list[Any]] = lambda _, rows: [
            tuple(rows)
        ],
    ) -> None:
        self.store, self.log, self._id = store, log, checkpoint_id
        self._divide, self._write = divide, write
        policy = policy or CommitPolicy(watermark_every=3, backoff=QUICK)
        self.main = DriverSession(store.open(MAIN), QUERY, self.look(), policy, look=self.look)
        self.sides = SideTables(self.main, store.open, digest=digest)
        driver = Driver("run", checkpoint_id, "/checkpoint")
        self.main.prepare()
        self.sides.prepare(expected)
        self.main.take_over(driver)
        self.sides.take_over()
        self.main.identify(driver)
        self.next = self.look().in_flight
        if self.next is None:
            self.next = log.get("committed", -1) + 1

    def look(self) -> Checkpoint:
        log = self.log
        known = self._id if log else None
        return Checkpoint("/checkpoint", known, log.get("planned", -1), log.get("committed", -1))

    def step(self) -> None:
        """Plan an epoch, write it as the sink does, log it as done."""
        epoch_id = self.next
        assert epoch_id is not None
        self.log["planned"] = max(epoch_id, self.log.get("planned", -1))
        plan = self.main.begin(epoch_id)
        if plan.decision == "FULL_COMMIT":
            self.write(plan, epoch_id, self._divide(epoch_id))
        else:
            plan.finish()
        self.log["committed"] = max(epoch_id, self.log.get("committed", -1))
        self.next = epoch_id + 1

    def write(self, plan: Any, epoch_id: int, rows: Rows) -> None:
        for name, sent in rows.items():
            if name:
                self.append(name, epoch_id, sent)
        self.sides.claim(epoch_id)
        plan.commit(self._epoch(plan, epoch_id, rows[""]))

    def append(self, name: str, epoch_id: int, rows: list[dict[str, int]]) -> None:
        uri = uri_of(name)
        plan = self.sides.begin(name, epoch_id, lambda: self.store.open_or_create(uri))
        if plan:
            plan.commit(self._epoch(plan, epoch_id, rows, self.sides.digest))

    def _epoch(self, plan: Any, epoch_id: int, rows: Any, digest: str = "") -> Epoch:
        return Epoch(
            epoch_id=epoch_id,
            mode=OutputMode.APPEND,
            fragments=self._write(plan.port, rows),
            rows=len(rows),
            bytes=0,
            started_at=utc_now(),
            digest=digest,
        )


def expect(store: Store, epochs: int, divide: Callable[[int], Rows] = rows_of) -> None:
    """Compare every table with what the epochs sent."""
    for name in ("", "two", "three", "five"):
        sent = [row["id"] for n in range(epochs) for row in divide(n).get(name, [])]
        assert store.rows(uri_of(name) if name else MAIN) == Counter(sent), name
