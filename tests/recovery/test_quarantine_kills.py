"""Drivers without Spark, killed 50 times at steps of the table and of the quarantine: real pylance.

They write as the sink does, from the Arrow rows on. Rows in = landed + dropped + quarantined, for
each epoch and in sum; the rows that are there are those that the conditions say.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import Driver, Epoch, utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.spark.collect_fragments import gather_rows
from airflow_provider_lance.spark.quarantine import commit_aside, open_quarantine, origin_of
from airflow_provider_lance.spark.sieve import Sieve
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions

KILLS = 50
TABLE = pa.schema([("id", pa.int64()), ("amount", pa.int8()), ("grp", pa.string())])
EXPECTATIONS = [
    {"name": "third", "condition": "…", "action": "drop"},
    {"name": "fifth", "condition": "…", "action": "quarantine"},
    {"name": "seventh", "condition": "…", "action": "warn"},
]


class Killed(BaseException):
    pass


def rows_of(epoch_id: int) -> pa.Table:
    """Return an epoch as Spark would give it: values, and those of the conditions."""
    random = Random(epoch_id)
    ids = [epoch_id * 100 + number for number in range(random.choice([0, 1, 5, 20]))]
    if epoch_id % 6 == 0:
        ids = [each for each in ids if each % 3 == 0]  # an epoch of which nothing lands
    raw = pa.array([b"\xff" if each % 11 == 0 else b"ok" for each in ids], pa.binary())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array([1000 if each % 13 == 0 else 1 for each in ids], pa.int64()),
            "grp": raw.view(pa.string()),
            "__lance_expect_0": pa.array([each % 3 != 0 for each in ids], pa.bool_()),
            "__lance_expect_1": pa.array([each % 5 != 0 or None for each in ids], pa.bool_()),
            "__lance_expect_2": pa.array([each % 7 != 0 for each in ids], pa.bool_()),
        }
    )


def fate(number: int) -> str:
    if number % 5 == 0:
        return "quarantined"
    if number % 3 == 0:
        return "dropped"
    return "quarantined" if number % 11 == 0 or number % 13 == 0 else "landed"


class Sink:
    """What the sink does in an epoch, without Spark; ``log`` is Spark's own."""

    def __init__(self, options: SinkOptions, log: dict[str, int], on_step: Any) -> None:
        self.options, self.log = options, log
        policy = CommitPolicy(watermark_every=3)
        port = open_dataset(options.uri)
        self.main = DriverSession(port, "q", self.look(), policy, look=self.look, on_step=on_step)
        self.main.prepare()
        self.sides = SideTables(self.main, open_dataset, digest=options.division)
        self.sides.prepare(options.side_uri)
        open_quarantine(options)
        driver = Driver("run", "id", "/checkpoint")
        self.main.take_over(driver)
        self.sides.take_over()
        self.main.identify(driver)

    def look(self) -> Checkpoint:
        known = "id" if self.log else None
        planned, committed = self.log.get("planned", -1), self.log.get("committed", -1)
        return Checkpoint("/checkpoint", known, planned, committed)

    def step(self) -> None:
        epoch_id = self.log.get("committed", -1) + 1
        self.log["planned"] = epoch_id
        plan: Any = self.main.begin(epoch_id)
        if plan.decision == "FULL_COMMIT":
            self.write(plan, epoch_id)
        else:
            plan.finish()
        self.log["committed"] = epoch_id

    def write(self, plan: Any, epoch_id: int) -> None:
        started_at = utc_now()
        origin = origin_of(self.options, epoch_id, None, started_at)
        assert origin is not None
        sieve = Sieve(self.options.expectations, self.options.keep_refused, origin)
        task = WriteTask(self.options.uri, "run", TABLE, 1000, 1000, sieve=sieve)
        written = gather_rows(rows_of(epoch_id), task, plan.port.dataset)
        if not written.rows and not written.checks:
            plan.finish()
            return
        commit_aside(self.sides, written, self.options, origin, None)
        self.sides.claim(epoch_id)
        plan.commit(
            Epoch(
                epoch_id,
                self.options.commit_mode,
                written.fragments,
                written.rows,
                written.bytes,
                started_at,
                checks=written.checks,
            )
        )


@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_accounted_for_once_after_50_kills(tmp_path: Path, seed: int) -> None:
    random, log = Random(seed), dict[str, int]()
    options = SinkOptions.parse(
        {
            "uri": str(tmp_path / "t.lance"),
            "queryId": "q",
            "checkpointLocation": "/checkpoint",
            "expectations": EXPECTATIONS,
            "onRefusedRow": "quarantine",
        }
    )
    lance.write_dataset(TABLE.empty_table(), options.uri)
    kills, killed_at = 0, Counter[Failpoint]()
    while kills < KILLS:
        left = random.randint(1, 30)

        def die(at: Failpoint) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                killed_at[at] += 1
                raise Killed

        try:
            sink = Sink(options, log, die)
            while True:
                sink.step()
        except Killed:
            kills += 1
    sink = Sink(options, log, lambda at: None)
    for _ in range(5):
        sink.step()
    assert sink.sides.release()
    epochs = log["committed"] + 1
    sent = [n for epoch in range(epochs) for n in rows_of(epoch).column("id").to_pylist()]
    expected: dict[str, Counter[int]] = {
        name: Counter(n for n in sent if fate(n) == name)
        for name in ("landed", "dropped", "quarantined")
    }
    assert Counter(lance.dataset(options.uri).to_table()["id"].to_pylist()) == expected["landed"]
    aside = lance.dataset(options.quarantine_place).to_table().to_pylist()
    assert Counter(json.loads(row["row"])["id"] for row in aside) == expected["quarantined"]
    port, total, landed = open_dataset(options.uri), RowChecks(), 0
    for version in range(1, port.version + 1):
        stamp = decode_stamp(port.properties(version) or {}, "q", version)
        if stamp:
            checks = stamp.checks
            read = stamp.rows + checks.dropped + checks.quarantined
            assert read == rows_of(stamp.epoch_id).num_rows, stamp
            total, landed = total + checks, landed + stamp.rows
    assert (landed, total.dropped, total.quarantined) == (
        expected["landed"].total(),
        expected["dropped"].total(),
        expected["quarantined"].total(),
    )
    assert total.expectations["fifth"].unmet == sum(n % 5 == 0 for n in sent)
    print(
        f"{kills} kills at {len(killed_at)} steps: {epochs} epochs, {len(sent)} rows in = {landed} "
        f"landed + {total.dropped} dropped + {total.quarantined} quarantined"
    )
    assert len(killed_at) >= 5
    assert len(sent) == landed + total.dropped + total.quarantined
