"""One chain from its first row to its end: fed, killed, maintained, drained and compared."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import lance

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.protocol.stop_requests import request_stop
from tests.chaos.chain.deaths import Death
from tests.chaos.chain.links import (
    CLEANED,
    LANDING,
    LINKS,
    RELEASES,
    TOTALS,
    Link,
    expected_cleaned,
    expected_landing,
    expected_totals,
)
from tests.chaos.chain.source import Reads
from tests.chaos.chain.table import Table
from tests.chaos.chain.upkeep import FRESH_SECONDS, UpkeepProcess
from tests.chaos.input import DDL, Source
from tests.chaos.judge import compare
from tests.chaos.life import End, Life, Manner
from tests.chaos.orders import Orders
from tests.chaos.plan import Mode, Whom
from tests.support.processes import REPOSITORY
from tests.support.temporary import temporary_variables

TRIGGER = "200 milliseconds"
PATIENCE_SECONDS = 140.0
"""A driver that is as old and has not come to its point is killed anyway."""

WORK_SECONDS = 4.0
"""After so long, a driver that shall die in its release is asked to stop."""

DRAIN_SECONDS = 900.0
END_SECONDS = 90.0
SLOW_MACHINE = "Python worker failed to connect back"
"""How Spark ends a query whose Python worker took more than ten seconds to start."""

AHEAD = 3
"""So many files wait for the first stream."""


@dataclass
class RoundResult:
    """What a round came to; ``kills`` by point, ``wrong`` is empty if all was right."""

    number: int
    kills: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    slow: int = 0
    """Drivers that Spark ended because the machine was too slow."""
    restarted: int = 0
    """Drivers that gave up, as a supervisor would start them again."""
    seconds: float = 0.0
    wrong: str = ""


@dataclass
class Slot:
    """A stream and its driver at the moment, if there is one."""

    link: Link
    table: Table
    life: Life | None = None
    death: Death | None = None
    born: float = 0.0
    ready: float = 0.0
    ripe: float = 0.0
    """When the driver had done as many epochs as it may."""
    since: int = 0
    """The newest epoch that was done before it."""
    asked: bool = False

    def due(self, now: float) -> bool:
        """Return whether the driver is to be killed now."""
        death = self.death
        if death is None or death.point:
            return False
        if not self.ripe and self.table.newest("commits") >= self.since + death.epochs:
            self.ripe = now
        return bool(self.ripe) and now > self.ripe + death.delay


class Chain:
    """Three streams, one after the other, and what kills their drivers."""

    def __init__(
        self,
        folder: Path,
        seed: str,
        fates: Mapping[str, Iterator[Death]],
        reads: Reads = Reads.PINNED,
        java: str = "",
    ) -> None:
        self._folder, self._fates, self._reads, self._java = folder, fates, reads, java
        self._dice = random.Random(f"{seed}/options")
        for name in ("lives", "tmp"):
            (folder / name).mkdir(parents=True)
        self._source = Source(folder / "source", Mode.UPSERT, seed)
        self._slots = {link.name: Slot(link, Table(link.name, folder)) for link in LINKS}
        self._lives: list[Life] = []
        for link in LINKS:
            lance.write_dataset(
                link.schema.empty_table(),
                self._slots[link.name].table.uri,
                enable_stable_row_ids=link is CLEANED,
            )

    def run(self, number: int, kills: int) -> RoundResult:
        """Kill so many drivers, then let all rows arrive, and compare."""
        result, began = RoundResult(number), time.monotonic()
        tables = [slot.table for slot in self._slots.values()]
        try:
            with UpkeepProcess([table.uri for table in tables]) as upkeep:
                self._fight(result, kills)
                self._drain(result)
            result.upkeep, blame = upkeep.outcomes, upkeep.unexpected
            result.wrong = result.wrong or blame
            self._stop(result)
            if self._has_read_all():  # otherwise rows are still on their way
                result.lost, result.duplicated = self._compare()
            if result.lost or result.duplicated:
                found = f"{result.lost} rows lost, {result.duplicated} duplicated"
                result.wrong = f"{found}. {result.wrong}"
        finally:
            for life in self._lives:
                life.clear()
        result.epochs = sum(table.newest("commits") + 1 for table in tables)
        result.rows = sum(map(len, self._source.files))
        result.seconds = time.monotonic() - began
        return result

    # ---------------------------------------------------------------------------------- drivers

    def _fight(self, result: RoundResult, kills: int) -> None:
        while result.kills.total() < kills and not result.wrong:
            self._feed()
            for slot in self._slots.values():
                self._step(slot, result, deadly=True)
            time.sleep(0.02)

    def _drain(self, result: RoundResult) -> None:
        """Start drivers that nobody kills, until everything has arrived."""
        deadline = time.monotonic() + DRAIN_SECONDS
        for slot in self._slots.values():
            self._kill(slot, result)
        while not result.wrong:
            for slot in self._slots.values():
                self._step(slot, result, deadly=False)
            if self._has_read_all():
                return
            if time.monotonic() > deadline:
                result.wrong = f"not everything has arrived after {DRAIN_SECONDS:g} s"
            time.sleep(0.3)

    def _stop(self, result: RoundResult) -> None:
        for slot in self._slots.values():
            if slot.life:
                request_stop(open_dataset(slot.table.uri), slot.link.name, by="the laboratory")
        for slot in self._slots.values():
            if slot.life:
                deadline = time.monotonic() + END_SECONDS
                while not slot.life.over and time.monotonic() < deadline:
                    time.sleep(0.1)
                self._end(slot, slot.life.end(), result, Manner.FINISHED)

    def _step(self, slot: Slot, result: RoundResult, *, deadly: bool) -> None:
        now = time.monotonic()
        if slot.life is None:
            if not deadly or self._may_begin(slot.link):
                slot.death = next(self._fates[slot.link.name]) if deadly else None
                slot.since, slot.ready, slot.ripe = slot.table.newest("commits"), 0.0, 0.0
                slot.asked, slot.born, slot.life = False, now, self._start(slot)
            return
        if slot.life.over or (deadly and slot.life.too_long):
            self._end(slot, slot.life.end(), result, *[Manner.KILLED] * deadly)
            return
        slot.ready = slot.ready or (now if slot.life.ready else 0.0)
        if slot.death is None or slot.life.killed:
            return
        age = now - slot.ready if slot.ready else 0.0
        if slot.due(now):
            slot.life.kill(slot.death.whom)
        elif now - slot.born > PATIENCE_SECONDS:
            self._kill(slot, result)
        elif slot.death.point in RELEASES and age > WORK_SECONDS and not slot.asked:
            port = open_dataset(slot.table.uri)
            slot.asked = bool(request_stop(port, slot.link.name, by="the laboratory"))

    def _kill(self, slot: Slot, result: RoundResult) -> None:
        """Kill a driver before it has come to its end."""
        if slot.life and slot.death:
            if not slot.life.killed:
                result.missed[slot.death.name] += 1
                slot.death = Death()
                slot.life.kill(Whom.ALL)
            self._end(slot, slot.life.end(), result, Manner.KILLED)

    def _end(self, slot: Slot, end: End, result: RoundResult, *right: Manner) -> None:
        if SLOW_MACHINE in end.message:
            result.slow += 1
        elif end.manner is Manner.GAVE_UP:
            result.restarted += 1
        elif end.manner not in right:
            what = f"the driver of {slot.link.name} {end.manner}: {end.error} {end.message}"
            result.wrong = result.wrong or what
        if end.manner is Manner.KILLED and slot.death:
            result.kills[slot.death.name] += 1
        slot.life = None

    def _may_begin(self, link: Link) -> bool:
        # So that its snapshot has rows.
        return not link.reads or self._slots[link.reads].table.newest("commits") >= 1

    def _start(self, slot: Slot) -> Life:
        sign = str(self._folder / "lives" / f"{len(self._lives):03}-{slot.link.name}")
        Path(f"{sign}.spec.json").write_text(json.dumps(self._spec(slot, Path(sign).name)))
        death = slot.death or Death()
        orders = Orders(
            spec=f"{sign}.spec.json",
            sign=sign,
            point=death.point,
            occurrence=death.occurrence,
            whom=death.whom,
            fresh=FRESH_SECONDS,
            reads=self._reads if slot.link.reads else "",
            java=self._java,
        )
        environment = temporary_variables(self._folder / "tmp")
        environment["SPARK_LOCAL_DIRS"] = environment["TMPDIR"]
        environment["PYTHONPATH"] = str(REPOSITORY)
        self._lives.append(Life(orders, environment))
        return self._lives[-1]

    def _spec(self, slot: Slot, launch: str) -> dict[str, object]:
        link, draw = slot.link, self._dice.choice
        sink = {
            "uri": slot.table.uri,
            "queryId": link.name,
            "checkpointLocation": str(slot.table.checkpoint),
            "watermarkEvery": draw([1, 3, 10]),
            "smallEpochRows": draw([0, 20_000]),
            "autoCompactEvery": draw([0, 0, 3]),
            **link.sink,
        }
        source: dict[str, object] = {
            "format": "parquet",
            "options": {"path": str(self._source.folder), "maxFilesPerTrigger": "1"},
            "schema": DDL,
        }
        if link.reads:
            options = {"path": self._slots[link.reads].table.uri, **link.source}
            if slot.death:
                options["maxRowsPerTrigger"] = draw(["7", "50", "100000"])
                options["maxVersionsPerTrigger"] = draw(["1", "3", "1000"])
            source = {"format": "lance", "options": options}
        spec = {"launchId": launch, "launchedBy": "the laboratory", "sink": sink}
        sql = {"sql": link.sql} if link.sql else {}
        return {**spec, "source": source, "trigger": TRIGGER, "stopGrace": 15, **sql}

    # ------------------------------------------------------------------------------------- rows

    def _feed(self) -> None:
        if len(self._source.files) - self._files_read("offsets") < AHEAD:
            self._source.add()

    def _files_read(self, log: str) -> int:
        table = self._slots[LANDING.name].table
        epoch = table.newest(log)
        return int(str(table.end(epoch)["logOffset"])) + 1 if epoch >= 0 else 0

    def _has_read_all(self) -> bool:
        """Return whether nothing is left to read; first of all for the first stream."""
        if self._files_read("commits") < len(self._source.files):
            return False
        return all(self._has_read(slot) for slot in self._slots.values() if slot.link.reads)

    def _has_read(self, slot: Slot) -> bool:
        epoch = slot.table.newest("commits")
        if epoch < 0:
            return False
        position = SourceOffset.read_json(slot.table.end(epoch))
        return self._slots[slot.link.reads].table.is_read_to(position)

    def _compare(self) -> tuple[int, int]:
        """Return the rows that are missing, and those too many, in all three datasets."""
        rows = {name: slot.table.rows for name, slot in self._slots.items()}
        landed, cleaned = rows[LANDING.name], rows[CLEANED.name]
        pairs: list[tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]] = [
            (landed, expected_landing(self._source.files)),
            (cleaned, expected_cleaned(landed.elements())),
            (rows[TOTALS.name], expected_totals(cleaned.elements())),
        ]
        lost, doubled = zip(*(compare(found, wanted) for found, wanted in pairs), strict=True)
        return sum(lost), sum(doubled)


def rounds(
    folder: Path,
    seed: str,
    kills: int,
    each: int,
    fates: Mapping[str, Iterator[Death]],
    tell: Callable[[RoundResult], bool],
    reads: Reads = Reads.PINNED,
    java: str = "",
) -> None:
    """Run chains until so many drivers were killed, or ``tell`` returns ``False``.

    :param each: kills of a chain.
    """
    done = number = 0
    while done < kills:
        chain = Chain(folder / f"chain-{number:02}", f"{seed}/{number}", fates, reads, java)
        result = chain.run(number, min(each, kills - done))
        done, number = done + result.kills.total(), number + 1
        if not tell(result):
            return
