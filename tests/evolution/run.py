"""One random history: writers take turns, also in the middle of each other's commits."""

from __future__ import annotations

import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.optimize import Compaction

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    LanceStreamError,
)
from airflow_provider_lance.protocol.added_columns import decode_added
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.spark.casts import conform
from airflow_provider_lance.spark.schema_fit import SchemaFit, _difference, _union
from tests.evolution.table import BASE, Oracle, columns_of, padded, rows_of
from tests.support.drivers import QUICK

DEEPEST = 3


class Killed(BaseException):
    """Ends a driver in the middle of its work, as a kill does."""


class Lab:
    """One dataset, its writers and its oracle; the dice decide who is next."""

    def __init__(self, uri: str, seed: int) -> None:
        self.dice, self.uri, self.seen = random.Random(seed), uri, Counter[str]()
        lance.write_dataset(BASE.empty_table(), uri, enable_stable_row_ids=bool(seed % 2))
        self.oracle, self.depth, self.left, self.foreign = Oracle(), 0, 0, 0
        self.queries = [
            Query(self, "app"),
            Query(self, "second"),
            Query(self, "upsert", keys=20),
        ]
        self.others: list[Callable[[], None]] = [
            self.append,
            self.compact,
            self.index,
            self.drop,
        ]
        self.commit = LanceDatasetPort.commit

    def run(self, turns: int) -> None:
        """Take turns, then let every query finish its last epoch; compare with the oracle."""

        def commit(port: LanceDatasetPort, change: Any, properties: Any = None) -> LanceDatasetPort:
            return self._commit(port, change, properties)

        LanceDatasetPort.commit = commit  # type: ignore[assignment,method-assign]
        try:
            self.left = turns
            while self.left > 0:
                self.turn()
            self.depth = DEEPEST + 1  # from here on nothing comes in between
            for query in self.queries:
                query.finish()
        finally:
            LanceDatasetPort.commit = self.commit  # type: ignore[method-assign]
        self.compare()
        lance.dataset(self.uri).optimize.compact_files()
        self.compare()

    def turn(self) -> None:
        """Let one writer work, a query more often than the others."""
        self.left -= 1
        if self.dice.random() < 0.75:
            self.dice.choice(self.queries).step()
        else:
            self.dice.choices(self.others, [6, 4, 1, 3])[0]()

    def meanwhile(self, chance: float = 0.15) -> None:
        """Sometimes let others work in the middle of what is going on."""
        if self.left > 0 and self.depth < DEEPEST and self.dice.random() < chance:
            self.depth += 1
            try:
                for _ in range(self.dice.randint(1, 2)):
                    self.turn()
            finally:
                self.depth -= 1

    def _commit(self, port: LanceDatasetPort, change: Any, properties: Any) -> LanceDatasetPort:
        self.meanwhile()
        if self.depth <= DEEPEST and self.dice.random() < 0.03:
            self.seen["request lost"] += 1
            raise CommitStateUnknownError("the request was lost")
        landed = self.commit(port, change, properties)
        if properties and "streaming.epochId" in properties:
            name, epoch = properties["streaming.queryId"], int(properties["streaming.epochId"])
            keys = next(each.keys for each in self.queries if each.name == name)
            self.oracle.land(name, epoch, keys)
        if self.depth <= DEEPEST and self.dice.random() < 0.03:
            self.seen["answer lost"] += 1
            raise CommitStateUnknownError("the answer was lost")
        self.meanwhile()
        return landed

    # ------------------------------------------------------------------------------ other writers

    def append(self) -> None:
        """Append as a plain writer does, from a handle that may be stale by then."""
        self.foreign += 1
        number = self.foreign
        while True:
            dataset = lance.dataset(self.uri)
            rows = rows_of("plain", number, columns_of("plain", number))
            schema = pa.schema([each for each in dataset.schema if each.name in rows.column_names])
            written = conform(rows, schema)
            fragments = write_fragments(written, dataset, mode="append")
            self.meanwhile(0.6)
            try:
                operation = lance.LanceOperation.Append(fragments)
                lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
            except CommitConflictError:
                self.seen["plain append refused"] += 1
                continue
            self.oracle.add(written)
            return

    def compact(self) -> None:
        """Compact in steps, with others between plan and commit."""
        dataset = lance.dataset(self.uri)
        tasks = [each.execute(dataset) for each in Compaction.plan(dataset, {}).tasks]
        self.meanwhile(0.6)
        try:
            Compaction.commit(lance.dataset(self.uri), tasks) if tasks else None
            self.seen["compaction"] += bool(tasks)
        except (OSError, CommitConflictError):
            self.seen["compaction refused"] += 1

    def index(self) -> None:
        lance.dataset(self.uri).create_scalar_index("id", "BTREE", replace=True)

    def drop(self) -> None:
        """Stop all queries, then drop a column: its field id must never be given again."""
        dataset = lance.dataset(self.uri)
        present = [name for name in ("x", "y", "s") if name in dataset.schema.names]
        if present and self.depth == 0:
            name = self.dice.choice(present)
            for query in self.queries:
                query.session = None
            dataset.drop_columns([name])
            self.oracle.drop(name)
            self.seen["column dropped"] += 1

    # ------------------------------------------------------------------------------------ compare

    def compare(self) -> None:
        """Compare every value of the table with the oracle."""
        done = {(each.name, n) for each in self.queries for n in range(each.committed + 1)}
        assert done == self.oracle.landed, "an epoch is logged as done and has not landed"
        rows = [padded(row) for row in lance.dataset(self.uri).to_table().to_pylist()]
        assert len({row["id"] for row in rows}) == len(rows), "a row is doubled"
        found = {row["id"]: row for row in rows}
        assert found.keys() == self.oracle.rows.keys(), (
            f"lost {sorted(self.oracle.rows.keys() - found.keys())}, "
            f"not expected {sorted(found.keys() - self.oracle.rows.keys())}"
        )
        wrong = [(found[n], row) for n, row in self.oracle.rows.items() if found[n] != row]
        assert not wrong, f"found, expected: {wrong[:3]}"

    def count(self) -> None:
        """Count what the history has met."""
        port = open_dataset(self.uri)
        for version in range(1, port.version + 1):
            if added := decode_added(port.properties(version) or {}):
                self.seen["commits that added columns"] += 1
                self.seen["columns added"] += len(added.columns)
        self.seen["versions"] += port.version
        self.seen["rows"] += len(self.oracle.rows)


class Query:
    """A query that adds columns and fills missing ones, through the protocol, without Spark."""

    def __init__(self, lab: Lab, name: str, keys: int = 0) -> None:
        self.lab, self.name, self.keys = lab, name, keys
        self.planned = self.committed = -1
        self.begun = False
        self.session: DriverSession | None = None
        self.busy: list[DriverSession] = []

    def look(self) -> Checkpoint:
        known = "checkpoint" if self.begun else None
        return Checkpoint("/checkpoint", known, self.planned, self.committed)

    def step(self) -> None:
        """Run one epoch with the driver there is, or with a new one beside it."""
        session = self.session
        if session is None or session in self.busy or self.lab.dice.random() < 0.1:
            session = None
        try:
            session = session or self._start()
            self.busy.append(session)
            try:
                self._epoch(session)
            finally:
                self.busy.remove(session)
        except Killed:
            self.lab.seen["killed"] += 1
            self._forget(session)
        except LanceStreamError as error:
            self.lab.seen[type(error).__name__] += 1
            self._forget(session)

    def finish(self) -> None:
        """End with no epoch in doubt."""
        self.session = None
        for _ in range(2):
            self._epoch(self._start())
        assert self.session is not None
        assert self.session.release()

    def _forget(self, session: DriverSession | None) -> None:
        if self.session is session:
            self.session = None

    def _start(self) -> DriverSession:
        self.lab.seen["drivers"] += 1
        session = DriverSession(
            open_dataset(self.lab.uri),
            self.name,
            self.look(),
            CommitPolicy(backoff=QUICK, watermark_every=3),
            look=self.look,
            on_step=self._on_step,
        )
        session.prepare()
        driver = Driver(f"run-{self.lab.dice.random()}", "checkpoint", "/checkpoint")
        session.take_over(driver)
        session.recheck()
        session.identify(driver)
        self.begun, self.session = True, session
        return session

    def _on_step(self, step: Failpoint) -> None:
        self.lab.meanwhile()
        if self.lab.depth <= DEEPEST and self.lab.dice.random() < 0.02:
            raise Killed(step)

    def _epoch(self, session: DriverSession) -> None:
        epoch = self.planned if self.planned > self.committed else self.committed + 1
        self.planned = max(epoch, self.planned)
        plan = session.begin(epoch)
        if plan.decision is Decision.FULL_COMMIT:
            self._add_columns(plan, epoch)
        self.lab.meanwhile()
        if plan.decision is Decision.FULL_COMMIT:
            port: Any = plan.port
            dataset = port.dataset
            rows = rows_of(self.name, epoch, columns_of(self.name, epoch), keys=self.keys)
            for missing in set(dataset.schema.names) - set(rows.column_names):
                rows = rows.append_column(missing, pa.nulls(rows.num_rows))
            added = conform(rows, dataset.schema)
            fragments = list(write_fragments(added, dataset))
            self.lab.meanwhile()
            upsert = {"keys": added.select(["id"]), "merge_keys": ("id",)} if self.keys else {}
            mode = OutputMode.UPDATE if self.keys else OutputMode.APPEND
            plan.commit(Epoch(epoch, mode, fragments, rows.num_rows, 0, utc_now(), **upsert))
        else:
            plan.finish()
        # Spark logs an epoch as done after the sink's call.
        self.lab.meanwhile()
        self.committed = max(epoch, self.committed)
        self.lab.seen["epochs"] += 1

    def _add_columns(self, plan: Any, epoch: int) -> None:
        dataset = plan.port.dataset.schema
        wanted = columns_of(self.name, epoch)
        added = _difference(wanted, dataset)
        if added.names:
            plan.add_columns(added, SchemaFit(_union(dataset, wanted), added).types)


@dataclass
class Tally:
    """What many histories met."""

    runs: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


def histories(runs: int, seed: int, folder: Path, turns: int = 30) -> Tally:
    """Run histories, each from a seed of its own; keep going after a wrong one."""
    tally, began = Tally(), time.monotonic()
    for number in range(seed, seed + runs):
        path = folder / f"{number}.lance"
        lab = Lab(str(path), number)
        try:
            lab.run(turns)
            lab.count()
        except Exception:
            tally.wrong[number] = traceback.format_exc()
        tally.runs += 1
        tally.seen += lab.seen
        shutil.rmtree(path, ignore_errors=True)
    tally.seconds = time.monotonic() - began
    return tally
