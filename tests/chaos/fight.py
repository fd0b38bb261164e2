"""One round's drivers while it is fought: their ends, and which of them are right."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.chaos.judge import Verdict
from tests.chaos.life import End, Life, Manner
from tests.chaos.plan import RoundPlan
from tests.chaos.scene import Scene


@dataclass
class Fight:
    """What became of a round's drivers. ``wrong`` says what must not have been, empty if nothing.

    ``kills`` are those that struck; ``missed`` those whose driver ended before. ``lost`` and
    ``unreadable`` are what a round saw in a dataset that it gave up afterwards, ``healthy`` counts
    checks that called a stream healthy while its rows were missing.
    """

    scene: Scene
    plan: RoundPlan
    kills: int = 0
    missed: int = 0
    lost: int = 0
    unreadable: int = 0
    healthy: int = 0
    ends: list[End] = field(default_factory=list)
    wrong: str = ""

    def end(self, life: Life, *right: Manner, errors: Collection[str] = ()) -> End:
        """Wait for a driver's end, and compare it with the ends that are right.

        :param errors: named errors that are right besides.
        """
        end = life.end()
        self.ends.append(end)
        self.kills += end.manner is Manner.KILLED
        allowed = {*right, *({Manner.GAVE_UP} if self.plan.faults else set())}
        if end.manner not in allowed and end.error not in errors:
            self.blame(f"a driver {end.manner}: {end.error} {end.message}".strip())
        return end

    def refusal(self, *errors: str, naming: str = "") -> End | None:
        """Start a driver, which must refuse with one of these errors; return its end if it did.

        :param naming: what its message must name.
        """
        end = self.end(self.scene.driver(), *Manner)
        if end.error in errors and naming in end.message:
            return end
        wanted = " or ".join(errors) + (f" that names {naming}" if naming else "")
        said = f"{end.error}: {end.message}" if end.error else f"it {end.manner}"
        self.blame(f"a driver must refuse with {wanted}, and {said}")
        return None

    def blame(self, what: str) -> None:
        """Note what must not have been; the first counts."""
        self.wrong = self.wrong or what

    def check(self, outcome: Verdict) -> None:
        """Run the recovery check, which must not call a stream healthy whose rows are missing."""
        if outcome.deceives(self.scene.healthy()):
            self.healthy += 1
            self.blame("the recovery check says healthy")

    def answer_gap(self) -> None:
        """Let a driver refuse a gap in history, and tell the next one what is so.

        Nothing is done where no version is missing, or more than that is wrong.
        """
        if not self.scene.judge().fine or not self.scene.gap:
            return
        end = self.end(self.scene.driver(), Manner.FINISHED, errors={"HistoryGapError"})
        if end.error == "HistoryGapError":
            self.answer(end, landed=self.scene.judge().epoch == self.scene.planned)

    def answer(self, end: End, *, landed: bool, gone: Collection[int] = ()) -> None:
        """Tell drivers from now on what one asked: about the newest epoch, and about lost ones.

        :param landed: whether the newest epoch that Spark has planned is in the dataset.
        :param gone: epochs that are not in the dataset, and Spark has as done.
        """
        scene = self.scene
        scene.gone |= set(gone)
        if end.error == "HistoryGapError" and (scene.planned > scene.committed or not gone):
            word = "committed" if landed else "missing"
            if printed := re.search(rf"onHistoryGap=({word}:{scene.planned}@\d+)", end.message):
                scene.answer = printed[1]
            else:
                self.blame(f"it does not say how to answer {word}:{scene.planned}: {end.message}")
        said = re.search(r"onRestore=(accept:(\d+)-(\d+))", end.message)
        if said and all(int(said[2]) <= epoch <= int(said[3]) for epoch in gone):
            if gone or end.error == "DatasetRestoredError":
                scene.accepted = said[1]
        elif gone:
            self.blame(f"epochs {sorted(gone)} are lost; it offers no way on: {end.message}")

    def begun(self, life: Life) -> bool:
        """Wait until a driver's Spark is there; return whether it lives."""
        return self.until(life, lambda: life.ready)

    def progressed(self, life: Life, epochs: int, since: int) -> bool:
        """Wait until Spark has logged so many more epochs; return whether the driver lives."""
        return self.until(life, lambda: self.scene.committed >= since + epochs)

    def kept_busy(self, life: Life, seconds: float) -> bool:
        """Give a driver files to read until it ends; return whether it did within this time."""
        deadline = time.monotonic() + seconds
        while not life.over and time.monotonic() < deadline:
            if self.scene.unread < 4:
                self.scene.source.add()
            time.sleep(0.1)
        return life.over

    @staticmethod
    def until(life: Life, condition: Callable[[], bool]) -> bool:
        """Wait for a condition or the driver's end; return whether it lives."""
        while not life.over and not life.too_long and not condition():
            time.sleep(0.01)
        return not life.over
