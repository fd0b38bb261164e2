"""Healing at random moments of random lives, beside drivers that are not dead at all.

Whoever repairs here always swears that the driver is dead, and mostly lies: even then no row may be
doubled or lost. What the sworn proof saves is only the stream of a driver that is fenced for it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from airflow_provider_lance.exceptions import FencedError, LanceStreamError
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.repair import force_release as repairing
from airflow_provider_lance.repair.actions import (
    fold_watermark,
    release_owner,
    resolve_gap,
)
from airflow_provider_lance.repair.result import Action, RepairResult
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import CHECKPOINT_ID, QUERY, QUICK
from tests.unit.test_protocol_properties import FIXED, SEARCH, Crash, FreshHandles, Protocol

EVENTS = ["crash", "steal", "stale", "compact", "clean up", "fold", "release"]


class Interrupted(InMemoryDataset):
    """Lets somebody act before one of the next commits."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.act: Callable[[], None] = lambda: None

    def commit(self, *commit: Any) -> int:
        self.left -= 1
        if self.left == -1:
            faults, self.faults = self.faults, []
            self.act()
            self.faults = faults
        return super().commit(*commit)


class Healing(Protocol):
    """The random life of a query, with somebody who repairs it all the time."""

    done: ClassVar[Counter[str]] = Counter()
    dataset: Interrupted

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="repairing-")

    def teardown(self) -> None:
        self._folder.cleanup()

    def new_dataset(self) -> InMemoryDataset:
        return Interrupted()

    @initialize(mode=st.sampled_from([OutputMode.APPEND, OutputMode.UPDATE]))
    def choose(self, mode: OutputMode) -> None:
        """Begin with some epochs, so that there is something to repair from the first moment on."""
        self.mode = mode
        self.start(10)
        for _ in range(3):
            self.step(self.drivers[0])

    @rule(number=st.integers(-1, 2), event=st.sampled_from(EVENTS))
    def fold(self, number: int, event: str) -> None:
        self.repair(Action.FOLD, number, event)

    @rule(number=st.integers(-1, 2), event=st.sampled_from(EVENTS))
    def release_by_hand(self, number: int, event: str) -> None:
        self.repair(Action.RELEASE, number, event)

    @rule(number=st.integers(-1, 2), event=st.sampled_from(EVENTS), commits=st.booleans())
    def answer(self, number: int, event: str, commits: bool) -> None:
        """Lose the evidence of an epoch of which Spark has not logged the end, and answer for it.

        Its driver is not dead: it may come back, or hang in this very epoch.
        """
        self.start_if_possible()
        driver = self.drivers[-1]
        if commits:
            self.step(driver, crash_before_log=True)
        else:
            self.log["planned"] = max(driver.next or 0, self.log["planned"])
        self.compact()
        self.clean_up(0)
        self.repair(Action.GAP, number, event)

    def repair(self, action: Action, number: int, event: str) -> None:
        before = exact_watermark(self.dataset.open(), QUERY)
        self.dataset.left, self.dataset.act = number, lambda: self.happen(event)
        try:
            repaired = self.do(action)
        except Crash:
            return
        except LanceStreamError as error:
            self.done[f"{action} {type(error).__name__}"] += 1
            return
        finally:
            self.dataset.left = -1
        self.done[f"{action} {repaired.changed}"] += 1
        state = decode_query(self.dataset.open().config, QUERY, self.dataset.version)
        assert min(repaired.watermark, state.watermark) >= before.epoch, "a watermark went back"

    def do(self, action: Action) -> RepairResult:
        port = self.dataset.open()
        if action is Action.FOLD:
            return fold_watermark(port, QUERY, backoff=QUICK)
        known: dict[str, Any] = {
            "by": "anna",
            "backoff": QUICK,
            "proven_dead": True,
            "checkpoint_location": self.checkpoint(),
        }
        if action is Action.RELEASE:
            return release_owner(port, QUERY, **known)
        seen = self.truth()
        assert seen.epoch_id is not None
        return resolve_gap(port, QUERY, seen.epoch_id, seen.landed, **known)

    @precondition(lambda self: self.drivers)
    @rule(which=st.integers(0, 2))
    def idle(self, which: int) -> None:
        """Poll for a stop request, as the other lives do; here one's own launch may be fenced."""
        driver = self.drivers[which % len(self.drivers)]
        try:
            self.obeys(driver, driver.committer.stop_requested(poll=True))
        except FencedError:
            self.end(driver, release=True)

    def checkpoint(self) -> str:
        """Write the checkpoint as it is now."""
        folder = Path(self._folder.name, str(len(list(Path(self._folder.name).iterdir()))))
        files = {"metadata": f'{{"id": "{CHECKPOINT_ID}"}}'}
        for log, word in (("offsets", "planned"), ("commits", "committed")):
            if self.log.get(word, -1) >= 0:
                files[f"{log}/{self.log[word]}"] = "v1\n{}"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(folder)

    def happen(self, event: str) -> None:
        if event == "crash":
            raise Crash
        happens: dict[str, Callable[[], Any]] = {
            "steal": self.steal_if_possible,
            "stale": self.stale,
            "compact": self.compact,
            "clean up": lambda: self.clean_up(0),
            "fold": lambda: self.repair(Action.FOLD, -1, ""),
            "release": lambda: self.repair(Action.RELEASE, -1, ""),
        }
        happens[event]()

    def start_if_possible(self) -> None:
        if len(self.drivers) < 3:
            self.start(10)

    def steal_if_possible(self) -> None:
        if len(self.drivers) < 3:
            self.steal()


class HealingFresh(Healing, FreshHandles):
    """Drivers commit on what they saw last, and every newcomer starts after a release by hand.

    So it finds a released query and commits no barrier: only the repairing's stops the others.
    """

    def steal(self) -> None:
        self.repair(Action.RELEASE, -1, "")
        super().steal()


@pytest.mark.parametrize("world", [Healing, HealingFresh])
def test_no_repair_loses_or_doubles_a_row(world: type[Healing]) -> None:
    world.done = Counter()
    run_state_machine_as_test(world, settings=settings(FIXED, max_examples=300))
    for action in Action.FOLD, Action.RELEASE:
        assert world.done[f"{action} True"] > 50
    if world is Healing:
        assert world.done[f"{Action.GAP} True"] > 10


def test_control_search_without_the_repairs_barrier_finds_a_doubled_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repairing, "CommitPolicy", partial(CommitPolicy, barrier=False))
    with pytest.raises(AssertionError, match="twice"):
        run_state_machine_as_test(HealingFresh, settings=settings(SEARCH, max_examples=2000))
