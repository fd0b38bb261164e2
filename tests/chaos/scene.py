"""A station's stream as everybody sees it: source, checkpoint, dataset, and drivers for it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.exceptions import DatasetNotFoundError, LanceStreamError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.chaos.input import DDL, SQL, Row, Source
from tests.chaos.judge import Evidence, Verdict, judge
from tests.chaos.life import Life
from tests.chaos.orders import Orders
from tests.chaos.plan import Control, Mode, StationPlan, Whom
from tests.chaos.store import Place
from tests.support.temporary import temporary_variables

QUERY = "chaos"
NOW, FOREVER = "availableNow", "0 seconds"
"""Triggers: read what is there and end, or wait for more."""


def newest_entry(log: Path) -> int:
    """Return the newest epoch of one of Spark's logs, -1 if there is none."""
    names = [path.name for path in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=NO_EPOCH)


@dataclass
class Scene:
    """One station at work.

    ``answer`` is what drivers are told of the last gap in history, as the error printed it. It
    names an epoch and a version, and stays in the options of every later driver. ``gap`` tells
    whether nobody has acted upon it yet. ``gone`` are the epochs that a restore took, and
    ``accepted`` tells drivers so.
    """

    plan: StationPlan
    folder: Path
    place: Place
    control: Control = Control.NONE
    java: str = ""
    interposer: str = ""
    answer: str = "fail"
    gap: bool = False
    gone: set[int] = field(default_factory=set)
    accepted: str = ""
    epochs: int = 0
    """What streams before a new start have planned."""
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._base, self._starts = self.place.uri.removesuffix(".lance"), 0
        self._start()
        (self.folder / "lives").mkdir()
        (self.folder / "tmp").mkdir()

    def _start(self) -> None:
        self._starts += 1
        seed = f"{self.plan.seed}/{self.plan.number}"
        tail = f"-{self._starts}" if self._starts > 1 else ""
        self.source = Source(self.folder / f"source{tail}", self.plan.mode, f"{seed}{tail}")
        self.checkpoint = self.folder / f"checkpoint{tail}"

    def renew(self) -> None:
        """Leave source, checkpoint and dataset as they are, and begin the stream somewhere else."""
        self.epochs += self.planned + 1
        self.answer, self.gap, self.gone, self.accepted = "fail", False, set(), ""
        self._start()
        self.place.move_to(f"{self._base}-{self._starts}.lance")

    def driver(
        self,
        trigger: str = NOW,
        *,
        point: str = "",
        occurrence: int = 1,
        whom: Whom = Whom.ALL,
        pause: bool = False,
        hold: bool = False,
        fresh: float = 0.0,
    ) -> Life:
        """Start a driver of the query, with a point at which it harms itself or none."""
        sign = str(self.folder / "lives" / f"{len(self.lives):03}")
        Path(f"{sign}.spec.json").write_text(json.dumps(self._spec(trigger, Path(sign).name)))
        orders = Orders(
            spec=f"{sign}.spec.json",
            sign=sign,
            point=point,
            occurrence=occurrence,
            whom=whom,
            pause=pause,
            hold=hold,
            fresh=fresh,
            control=self.control,
            java=self.java,
        )
        temporary = temporary_variables(self.folder / "tmp")
        temporary["SPARK_LOCAL_DIRS"] = temporary["TMPDIR"]
        life = Life(orders, temporary, self.interposer)
        self.lives.append(life)
        return life

    def _spec(self, trigger: str, launch: str) -> dict[str, object]:
        sink = {
            "uri": self.place.uri,
            "queryId": QUERY,
            "checkpointLocation": str(self.checkpoint),
            "createIfMissing": True,
            "storageOptions": self.place.options,
            "onHistoryGap": self.answer,
            **self.plan.options,
        }
        if self.accepted:
            sink["onRestore"] = self.accepted
        spec = {
            "launchId": f"life-{launch}",
            "launchedBy": "the laboratory",
            "sink": sink,
            "source": {
                "format": "parquet",
                "options": {"path": str(self.source.folder), "maxFilesPerTrigger": "1"},
                "schema": DDL,
            },
            "trigger": trigger,
            "stopGrace": 15,
        }
        sql = SQL[self.plan.mode]
        return spec | ({"sql": sql} if sql else {})

    def files_until(self, epoch: int) -> int:
        """Return how many files Spark has planned for all epochs up to one; -1 is none.

        Mostly one each. A driver killed between the source's log and `offsets/N` leaves a file
        that its successor reads together with the next.
        """
        if epoch < 0:
            return 0
        return int(json.loads(self._offsets(epoch)[2])["logOffset"]) + 1

    def _offsets(self, epoch: int) -> list[str]:
        return (self.checkpoint / "offsets" / str(epoch)).read_text().splitlines()

    @property
    def unread(self) -> int:
        """Return how many files no epoch was planned for yet."""
        return len(self.source.files) - self.files_until(self.planned)

    def expected(self, epoch: int) -> Counter[Row]:
        """Return what the dataset must hold after an epoch."""
        if self.plan.mode is Mode.COMPLETE:  # a later epoch has brought the lost ones back
            there = [each for each in range(epoch + 1) if each not in self.gone]
            return self.source.expected(self.files_until(max(there, default=NO_EPOCH)))
        lost = {
            file
            for each in self.gone
            if each <= epoch
            for file in range(self.files_until(each - 1), self.files_until(each))
        }
        return self.source.expected(self.files_until(epoch), lost)

    @property
    def planned(self) -> int:
        """Return the newest epoch that Spark has planned, -1 if none."""
        return newest_entry(self.checkpoint / "offsets")

    @property
    def committed(self) -> int:
        """Return the newest epoch that Spark has logged as done, -1 if none."""
        return newest_entry(self.checkpoint / "commits")

    def rows(self, port: LanceDatasetPort) -> list[Row]:
        """Return the rows of a version, as a reader who knows nothing of streams finds them."""
        table = port.dataset.to_table()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def evidence(self) -> Evidence:
        """Look at the dataset and at Spark's logs, while no driver lives."""
        self.gap = False
        if not self.made:
            return Evidence(Counter(), NO_EPOCH, 0, self.planned, self.committed)
        port = self.place.open_unharmed()
        mark = exact_watermark(port, QUERY)
        self.gap = mark.missing > 0
        rows, unreadable = self._count(port)
        # The classic design claims nothing: the epoch in flight may be there or not.
        missing = 1 if self.control is Control.LOOKBACK else mark.missing_above
        return Evidence(rows, mark.epoch, missing, self.planned, self.committed, unreadable)

    def _count(self, port: LanceDatasetPort) -> tuple[Counter[Row], str]:
        try:
            return Counter(self.rows(port)), ""
        except (OSError, ValueError) as error:
            return Counter(), str(error)

    def healthy(self) -> bool:
        """Tell whether the recovery check finds no more than `lance-stream check` lets pass."""
        try:
            port = self.place.open_unharmed()
            report = check(
                port,
                (QUERY,),
                checkpoint_location=str(self.checkpoint),
                storage_options=port.storage_options,
                orphans=False,
            )
        except LanceStreamError:
            return False
        return not report.at_or_above(Severity.ERROR)

    @property
    def made(self) -> bool:
        """Tell whether a driver has made the dataset yet."""
        try:
            self.place.open_unharmed()
        except DatasetNotFoundError:
            return False
        return True

    def judge(self) -> Verdict:
        """Compare the dataset with the input."""
        return judge(self.evidence(), self.expected)

    def clear(self) -> None:
        """End whatever still lives."""
        for life in self.lives:
            life.clear()
