"""Random streams of changes against a plain history, their drivers killed at each step.

Real datasets and sessions, without Spark: ``python -m tests.cdc.sequences --scd 2 --runs 2000``;
with ``--spark``, real streaming queries whose executors or driver write. A run is a stream of
inserts, updates, deletes and truncates, shuffled, doubled, late by up to the whole stream, cut into
random epochs. A driver ends at a random step, and the next one goes on. Meanwhile others compact,
clean up, and add rows between comparison and commit. At the end the table is compared with the
plain one. With ``--scd 1 --without-sequencing`` the order of arrival takes the place of the
sequence: then most tables differ.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsChangedError
from airflow_provider_lance.maintenance.cleanup import Retention, clean_up
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.spark.collect_fragments import gather_rows
from airflow_provider_lance.spark.comparison import Comparison
from airflow_provider_lance.spark.epoch_runner import order_of
from airflow_provider_lance.spark.history import History, versions_of
from airflow_provider_lance.spark.history_task import HistoryTask
from airflow_provider_lance.spark.ordered_task import TRUNCATE_FLAG, OrderedTask
from airflow_provider_lance.spark.scd2 import END_AT, SEQUENCE, START_AT
from airflow_provider_lance.spark.sieve import DELETE_FLAG
from airflow_provider_lance.spark.tombstones import Tombstones
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.support.drivers import QUICK
from tests.support.history import DELETE, TRUNCATE, UPSERT, Record, history

OTHERS = -1
"""The key of rows that others add."""


class Killed(BaseException):
    """The process is gone."""


class Run:
    """One stream, its table, and what happened to it."""

    def __init__(self, root: Path, seed: int, scd: int, arrival: bool) -> None:
        self.random = random.Random(seed)
        self.scd, self.arrival = scd, arrival
        self.tracked = scd == 2 and self.random.random() < 0.5
        self.log: dict[str, int] = {}
        self.happened: Counter[str] = Counter()
        self.options = SinkOptions.parse(
            {
                "uri": str(root / "table.lance"),
                "checkpointLocation": str(root / "checkpoint"),
                "queryId": "q",
                "outputMode": "update",
                "mergeKeys": ["id"],
                "sequenceBy": ["lsn"],
                "deleteWhen": "op = 'D'",
                "truncateWhen": "op = 'T'",
                "scdType": scd,
                "trackHistoryColumns": ["name"] if self.tracked else None,
            }
        )
        fields = {"id": pa.int64(), "name": pa.string(), "note": pa.string(), "lsn": pa.int64()}
        if scd == 2:
            fields |= {START_AT: pa.int64(), END_AT: pa.int64()}
        self.schema = pa.schema(fields)
        lance.write_dataset(self.schema.empty_table(), self.options.uri)
        self.epochs = self._epochs()

    def _epochs(self) -> list[list[Record]]:
        size = self.random.randint(10, 60)
        records = []
        for sequence in range(size):
            kind, key = self.random.random(), self.random.randrange(size // 6 + 1)
            if kind < 0.02:
                records.append(Record(TRUNCATE, sequence))
            elif kind < 0.25:
                records.append(Record(DELETE, sequence, key))
            else:
                values = (self.random.choice("xyz"), self.random.choice("abc"))
                records.append(Record(UPSERT, sequence, key, values))
        records += self.random.sample(records, size // 8)
        late = self.random.choice([2, size // 2, size])
        order = sorted(records, key=lambda each: each.sequence + self.random.random() * late)
        cuts = sorted(self.random.sample(range(1, len(order)), self.random.randint(1, 6)))
        return [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]

    def rows(self, records: list[Record]) -> pa.Table:
        """Return an epoch as Spark's projection does; with `arrival`, ordered as it arrives."""
        stamps = count(self.happened["records"])
        sequences = [next(stamps) if self.arrival else each.sequence for each in records]
        self.happened["records"] += len(records)
        columns = {
            "id": pa.array([each.key for each in records], pa.int64()),
            "name": pa.array([(each.values or (None,))[0] for each in records], pa.string()),
            "note": pa.array([(each.values or (None,))[-1] for each in records], pa.string()),
            "lsn": pa.array(sequences, pa.int64()),
            DELETE_FLAG: [each.operation == DELETE for each in records],
            TRUNCATE_FLAG: [each.operation == TRUNCATE for each in records],
        }
        if self.scd == 2:
            columns[SEQUENCE] = columns["lsn"]
        return pa.table(columns)

    # --------------------------------------------------------------------------- what others do

    def step(self, step: Any) -> None:
        """Be killed, or let others commit."""
        dice = self.random.random()
        if dice < 0.04:
            self.happened[f"killed at {step}"] += 1
            raise Killed
        if dice < 0.06:
            self.happened["compactions"] += 1
            lance.dataset(self.options.uri).optimize.compact_files()
        elif dice < 0.07:
            self.happened["cleanups"] += 1
            clean_up(open_dataset(self.options.uri), Retention(older_than=0))
        elif dice < 0.09:
            self.happened["rows of others"] += 1
            row = {name: [None] for name in self.schema.names} | {"id": [OTHERS]}
            if self.scd == 2:
                row[START_AT] = [self.happened["rows of others"]]
            table = pa.Table.from_pydict(row, schema=self.schema)
            lance.write_dataset(table, self.options.uri, mode="append")

    # ----------------------------------------------------------------------------------- drivers

    def look(self) -> Checkpoint:
        log = self.log
        known = "checkpoint" if log else None
        return Checkpoint("/cp", known, log.get("planned", -1), log.get("committed", -1))

    def drive(self) -> None:
        """Run drivers until one has done all epochs."""
        while self.look().committed < len(self.epochs) - 1:
            try:
                Life(self).work()
            except Killed:
                self.happened["kills"] += 1

    def expected(self) -> dict[Any, Any]:
        plain = history(self.epochs, [0] if self.tracked else [])
        if self.scd == 2:
            return plain
        return {key: values for (key, _), (end, values) in plain.items() if end is None}

    def found(self) -> dict[Any, Any]:
        rows = [r for r in lance.dataset(self.options.uri).to_table().to_pylist() if r["id"] >= 0]
        if self.scd == 2:
            found = {(r["id"], r[START_AT]): (r[END_AT], (r["name"], r["note"])) for r in rows}
        else:
            found = {r["id"]: (r["name"], r["note"]) for r in rows}
        return found if len(found) == len(rows) else {"doubled": rows}


class Life:
    """One driver."""

    def __init__(self, run: Run) -> None:
        self.run, options = run, run.options
        policy = CommitPolicy(watermark_every=3, backoff=QUICK)
        port = open_dataset(options.uri)
        self.main = DriverSession(port, "q", run.look(), policy, look=run.look, on_step=run.step)
        self.sides = SideTables(self.main, open_dataset, digest=options.division)
        self.main.prepare()
        self.sides.prepare()
        driver = Driver("run", "checkpoint", "/cp")
        self.main.take_over(driver)
        self.sides.take_over()
        self.main.identify(driver)
        order = order_of(options)
        assert order is not None
        self.order, self.versions = order, versions_of(options, run.schema)
        self.task = WriteTask(
            options.uri, "run", run.schema, 20_000, 1_000_000, ("id",), flagged=True
        )
        versions = self.versions
        graves = versions.remembered_schema if versions else order.tombstones_of(run.schema)
        self.tombstones = Tombstones(options, graves, self.sides, self.task)

    def work(self) -> None:
        log, seen = self.run.log, self.run.look()
        first = seen.committed + 1 if seen.in_flight is None else seen.in_flight
        for epoch_id in range(first, len(self.run.epochs)):
            log["planned"] = max(epoch_id, log.get("planned", -1))
            self.run.step("planned")
            plan = self.main.begin(epoch_id)
            if plan.decision is Decision.FULL_COMMIT:
                self._write(plan, epoch_id)
            else:
                plan.finish()
            self.run.step("done")
            log["committed"] = max(epoch_id, log.get("committed", -1))
        self.sides.release()

    def _write(self, plan: Any, epoch_id: int) -> None:
        """Do what the sink does with an epoch that its driver has collected."""
        for _ in range(12):
            try:
                return self._compared(plan, epoch_id)
            except RowsChangedError:
                self.run.happened["compared again"] += 1
        raise AssertionError("others change rows each time")

    def _compared(self, plan: Any, epoch_id: int) -> None:
        rows, table = self.run.rows(self.run.epochs[epoch_id]), plan.port.dataset
        graves = self.tombstones.newest()
        place = (graves.uri, graves.version) if graves else None
        if self.versions:
            history = History(self.order, table.version, place, versions=self.versions)
            written = gather_rows(rows, HistoryTask.of(self.task, history), table, graves)
        else:
            compared = Comparison(self.order, table.version, place)
            ordered, cuts = OrderedTask.of(self.task, compared), rows[TRUNCATE_FLAG]
            cut, checks = ordered.truncation(rows.filter(cuts), table, graves)
            below = replace(ordered, comparison=replace(compared, truncate=cut.sequence))
            rest = rows.filter(pc.invert(cuts))
            written = gather_rows(rest, below, table, graves).after(cut, checks)
        epoch = Epoch(
            epoch_id=epoch_id,
            mode=OutputMode.UPDATE,
            fragments=written.fragments,
            rows=written.rows,
            deletes=written.deletes,
            bytes=written.bytes,
            started_at=utc_now(),
            keys=written.keys if written.rows else None,
            lookup=written.lookup,
            merge_keys=("id", START_AT) if self.versions else ("id",),
            compared_at=written.compared_at,
            checks=written.checks,
        )
        self.run.step("written")
        self.sides.claim(epoch_id)
        assert written.tombstones is not None
        self.tombstones.leave(epoch, written.tombstones)
        self.run.step("remembered")
        plan.commit(epoch)


def runs(
    scd: int,
    number: int,
    seed: int,
    *,
    arrival: bool = False,
    make: Callable[..., Run] | None = None,
) -> Iterator[tuple[Run, bool]]:
    """Yield each run, done, and whether its table is as expected."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for each in range(number):
        root = Path(tempfile.mkdtemp(prefix="sequences", dir=memory))
        try:
            run = (make or Run)(root, seed * 1_000_003 + each, scd, arrival)
            run.drive()
            yield run, run.found() == run.expected()
        finally:
            shutil.rmtree(root)


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.cdc.sequences", description=__doc__)
    parser.add_argument("--scd", type=int, choices=(1, 2), default=2)
    parser.add_argument("--runs", type=int, default=2_000, help="how many (2,000)")
    parser.add_argument("--seed", type=int, default=1, help="decides them all (1)")
    parser.add_argument("--spark", action="store_true", help="on real Spark")
    parser.add_argument("--without-sequencing", action="store_true", help="order by arrival")
    given = parser.parse_args()
    make = None
    if given.spark:
        from benchmarks.harness.spark import session
        from tests.cdc.spark_sequences import SparkRun

        spark = session()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        make = partial(SparkRun, spark)
    began, happened, wrong, epochs = time.monotonic(), Counter[str](), [], 0
    for number, (run, right) in enumerate(
        runs(given.scd, given.runs, given.seed, arrival=given.without_sequencing, make=make)
    ):
        happened.update(run.happened)
        epochs += len(run.epochs)
        if not right:
            wrong.append(number)
    for name, times in sorted(happened.items()):
        print(f"{name:32}{times:>9}")
    print(
        f"{given.runs} runs of type {given.scd}, seed {given.seed}: {epochs} epochs, "
        f"{len(wrong)} tables differ {wrong[:10]}, {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
