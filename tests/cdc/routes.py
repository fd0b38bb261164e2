"""Twenty tables from one stream, its driver killed between two of them again and again.

Real datasets and sessions, without Spark: ``python -m tests.cdc.routes --kills 200 --seed 1``. A
driver ends at a random step of a random table's commit, or hangs there and goes on after its
successor has claimed. Meanwhile tables are compacted. At the end, every table is compared with
what the epochs sent.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from tests.support.drivers import QUICK

SCHEMA = pa.schema([("id", pa.int64()), ("epoch", pa.int64())])
DIGEST = "0" * 64
ROUTES = 20


class Killed(BaseException):
    """The process is gone."""


class Laboratory:
    """The tables, Spark's log, and what the epochs sent."""

    def __init__(self, root: Path, seed: int, *, home_first: bool = False) -> None:
        self.root, self.seed, self.random = root, seed, random.Random(seed)
        self.home_first = home_first
        self.log: dict[str, int] = {}
        self.kills: Counter[str] = Counter()
        self.between = self.fenced = 0
        lance.write_dataset(SCHEMA.empty_table(), self.uri("home"))

    def uri(self, name: str) -> str:
        return str(self.root / f"{name}.lance")

    def open(self, name: str) -> LanceDatasetPort:
        if not (self.root / f"{name}.lance").exists():
            lance.write_dataset(SCHEMA.empty_table(), self.uri(name))
        return open_dataset(self.uri(name))

    def sent(self, epoch_id: int) -> dict[str, pa.Table]:
        """Return an epoch's rows by route; the same ones for each driver."""
        drawn = random.Random(self.seed * 1_000_003 + epoch_id)
        routes = sorted(drawn.sample(range(ROUTES), drawn.randint(ROUTES // 2, ROUTES)))
        return {f"route.{n:02}": _rows(epoch_id, n, drawn.randint(1, 4)) for n in routes}

    def look(self) -> Checkpoint:
        log = self.log
        known = "checkpoint" if log else None
        return Checkpoint("/checkpoint", known, log.get("planned", -1), log.get("committed", -1))

    def run(self, kills: int) -> int:
        """Start drivers until so many were killed between two tables; the last ends in order."""
        while self.between < kills:
            torn = self.random.random() < 0.9
            life = Life(self, self.random.randint(1, 60), torn=torn)
            try:
                life.start()
                for _ in range(8):
                    life.step()
                life.sides.release()
            except Killed:
                self.kills[life.killed_at] += 1
                self.between += life.torn
            self._others()
            if life.killed_at and life.main.owner and self.random.random() < 0.25:
                self._wake(life)
        last = Life(self, None)
        last.start()
        last.step()
        assert last.sides.release()
        return self.log["committed"] + 1

    def _others(self) -> None:
        for number in self.random.sample(range(ROUTES), 2):
            name = f"route.{number:02}"
            if (self.root / f"{name}.lance").exists():
                lance.dataset(self.uri(name)).optimize.compact_files()

    def _wake(self, stale: Life) -> None:
        """Let the killed driver be one that hung: it goes on after its successor's claim."""
        heir = Life(self, None)
        heir.start()
        for name, rows in self.sent(self.log["planned"]).items():
            try:
                stale.append(name, self.log["planned"], rows)
            except LanceStreamError:
                self.fenced += 1
        heir.step()
        assert heir.sides.release()

    def differences(self, epochs: int) -> list[str]:
        """Compare every table with what was sent."""
        wanted: dict[str, Counter[tuple[int, int]]]
        wanted = {f"route.{n:02}": Counter() for n in range(ROUTES)} | {"home": Counter()}
        for epoch_id in range(epochs):
            sent = self.sent(epoch_id)
            for name, rows in sent.items():
                wanted[name].update(_pairs(rows))
            wanted["home"][(len(sent), epoch_id)] += 1
        wrong = []
        for name, rows in wanted.items():
            found = _pairs(lance.dataset(self.uri(name)).to_table())
            if found != rows:
                wrong.append(f"{name}: missing {rows - found}, too many {found - rows}")
        return wrong


def _rows(epoch_id: int, route: int, count: int) -> pa.Table:
    ids = [epoch_id * 1000 + route * 10 + n for n in range(count)]
    return pa.table({"id": ids, "epoch": [epoch_id] * count}, schema=SCHEMA)


def _pairs(rows: pa.Table) -> Counter[tuple[int, int]]:
    return Counter(zip(*rows.to_pydict().values(), strict=True))


class Life:
    """One driver, which ends at its n-th step; the steps of all its tables count."""

    def __init__(self, laboratory: Laboratory, ends_at: int | None, *, torn: bool = False) -> None:
        """Prepare a driver.

        :param torn: count only steps between the commits of two tables of an epoch.
        """
        self.laboratory, self._left, self._counts_torn = laboratory, ends_at, torn
        self.killed_at = ""
        self.torn = False
        """Whether some tables had the epoch and others did not when it ended."""
        self._committed = 0
        policy = CommitPolicy(watermark_every=4, backoff=QUICK)
        self.main = DriverSession(
            laboratory.open("home"),
            "routes",
            laboratory.look(),
            policy,
            look=laboratory.look,
            on_step=self._step,
        )
        self.sides = SideTables(self.main, open_dataset, digest=DIGEST)

    def _step(self, step: Failpoint) -> None:
        if self._left is None or (self._counts_torn and not self._committed):
            return
        self._left -= 1
        if self._left <= 0:
            self._left = None
            self.killed_at, self.torn = step.value, self._committed > 0
            raise Killed

    def start(self) -> None:
        driver = Driver("run", "checkpoint", "/checkpoint")
        self.main.prepare()
        self.sides.prepare(self.laboratory.uri)
        self.main.take_over(driver)
        self.sides.take_over()
        self.main.identify(driver)
        log = self.laboratory.log
        self.next = self.laboratory.look().in_flight
        if self.next is None:
            self.next = log.get("committed", -1) + 1

    def step(self) -> None:
        epoch_id, log = self.next, self.laboratory.log
        assert epoch_id is not None
        log["planned"] = max(epoch_id, log.get("planned", -1))
        plan = self.main.begin(epoch_id)
        if plan.decision is Decision.FULL_COMMIT:
            sent = self.laboratory.sent(epoch_id)
            if self.laboratory.home_first:
                self._record(plan, epoch_id, len(sent))
            for name, rows in sent.items():
                self.append(name, epoch_id, rows)
                self._committed += 1
            if not self.laboratory.home_first:
                self._record(plan, epoch_id, len(sent))
        else:
            plan.finish()
        self._committed = 0
        log["committed"] = max(epoch_id, log.get("committed", -1))
        self.next = epoch_id + 1

    def _record(self, plan: EpochPlan, epoch_id: int, routes: int) -> None:
        self.sides.claim(epoch_id)
        _commit(plan, epoch_id, pa.table({"id": [routes], "epoch": [epoch_id]}, SCHEMA), "")

    def append(self, name: str, epoch_id: int, rows: pa.Table) -> None:
        plan = self.sides.begin(name, epoch_id, lambda: self.laboratory.open(name))
        if plan:
            _commit(plan, epoch_id, rows, DIGEST)


def _commit(plan: EpochPlan, epoch_id: int, rows: pa.Table, digest: str) -> None:
    port = plan.port
    assert isinstance(port, LanceDatasetPort)
    fragments = list(write_fragments(rows, port.dataset))
    size = rows.nbytes
    mode = OutputMode.APPEND
    plan.commit(Epoch(epoch_id, mode, fragments, rows.num_rows, size, utc_now(), digest=digest))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--home-first", action="store_true", help="the wrong order: rows are lost")
    order = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="routes-", dir=order.folder))
    began = time.monotonic()
    try:
        laboratory = Laboratory(root, order.seed, home_first=order.home_first)
        epochs = laboratory.run(order.kills)
        wrong = laboratory.differences(epochs)
    finally:
        shutil.rmtree(root)
    print(
        f"{ROUTES} tables and their home, {epochs} epochs, {sum(laboratory.kills.values())} kills, "
        f"{laboratory.between} of them between two tables of an epoch, {laboratory.fenced} commits "
        f"of stale drivers refused: {len(wrong)} tables differ ({time.monotonic() - began:.0f} s)"
    )
    print(", ".join(f"{step} {count}" for step, count in sorted(laboratory.kills.items())))
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
