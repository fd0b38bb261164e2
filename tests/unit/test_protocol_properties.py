"""Random drivers, faults and crashes over the twin: the dataset always holds whole epochs, once.

What Spark does to the protocol is modelled as strictly as Spark does it: a planned epoch is
replayed by whoever starts next, and nobody plans an epoch that is in the log of planned ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    FencedError,
    HistoryGapError,
    LanceStreamError,
)
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, Moment, OnHistoryGap, now
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import OutputMode, StopNote
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset
from tests.support.drivers import QUERY, QUICK, SparkLike, epoch_rows, twin_world
from tests.support.searches import search

FIXED = settings(
    max_examples=1200,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
SEARCH = settings(FIXED, phases=[Phase.generate], print_blob=False)

Meanwhile = tuple[Failpoint, str] | None
MEANWHILE = st.none() | st.tuples(
    st.sampled_from(list(Failpoint)),
    st.sampled_from(["crash", "steal", "stale", "compact", "clean up", "stop"]),
)


class Crash(BaseException):
    """The process is gone: nothing below may catch it."""


class PlannedByAnotherError(Exception):
    """Spark's own refusal: this epoch is in the log of planned epochs already."""


class Driver(SparkLike):
    """Reaches each step with an ear for what happens meanwhile."""

    def __init__(self, machine: Protocol, policy: CommitPolicy) -> None:
        self.decision: Decision | None = None
        self.fold_every, self.commits_since = policy.watermark_every, 0
        self.launch_id, self.asked_before = f"launch-{machine.started}", machine.asked
        super().__init__(
            twin_world(machine.dataset),
            machine.log,
            run_id=f"run-{machine.started}",
            launch_id=self.launch_id,
            policy=policy,
            mode=machine.mode,
            on_step=machine.on_step,
        )
        self._replays = self.look().in_flight

    def step_in_spark(self, *, crash_before_log: bool) -> int:
        epoch_id = self.next
        assert epoch_id is not None
        if epoch_id != self._replays and self.log.get("planned", -1) >= epoch_id:
            raise PlannedByAnotherError
        logged = self.log.get("committed", -1)
        self.decision = self.step(rows_of(epoch_id, self.mode)).decision
        if crash_before_log and self.log["committed"] == epoch_id:
            self.log["committed"] = min(logged, epoch_id)
        return epoch_id


def rows_of(epoch_id: int, mode: OutputMode) -> list[dict[str, int]]:
    if mode is OutputMode.APPEND:
        return epoch_rows(epoch_id)
    return [{"id": key, "epoch": epoch_id} for key in range(epoch_id, epoch_id + 3)]


def after(
    epoch_id: int, mode: OutputMode, without: Collection[int] = ()
) -> Counter[tuple[int, int]]:
    """Return the rows (id, epoch) of a dataset that has every epoch up to one, once each."""
    epochs = [n for n in range(epoch_id + 1) if n not in without]
    rows = [row for n in epochs for row in rows_of(n, mode)]
    if mode is OutputMode.UPDATE:
        rows = list({row["id"]: row for row in rows}.values())
    return Counter((row["id"], row["epoch"]) for row in rows)


class Protocol(RuleBasedStateMachine):
    """One query, one checkpoint, up to three drivers that each believe the query is theirs."""

    barrier = True
    fresh_seconds = 0.0
    accepted: tuple[type[LanceStreamError], ...] = (
        FencedError,
        HistoryGapError,
        CommitStateUnknownError,
    )

    def __init__(self) -> None:
        super().__init__()
        self.dataset = self.new_dataset()
        self.log: dict[str, int] = {}
        self.mode = OutputMode.APPEND
        self.drivers: list[Driver] = []
        self.at_work: list[Driver] = []
        self.meanwhile: Meanwhile = None
        self.reported = -1
        self.started = 0
        self.asked = 0
        self.may_land_late: set[int] = set()

    def new_dataset(self) -> InMemoryDataset:
        return InMemoryDataset()

    @initialize(mode=st.sampled_from([OutputMode.APPEND, OutputMode.UPDATE]))
    def choose(self, mode: OutputMode) -> None:
        self.mode = mode

    # ------------------------------------------------------------------------------- drivers

    @precondition(lambda self: len(self.drivers) < 3)
    @rule(every=st.sampled_from([1, 2, 10]))
    def start(self, every: int) -> None:
        self.started += 1
        policy = CommitPolicy(
            watermark_every=every,
            backoff=QUICK,
            barrier=self.barrier,
            fresh_seconds=self.fresh_seconds,
            clock=self.now,
        )
        if driver := self.new_driver(policy):
            self.drivers.append(driver)

    def now(self) -> Moment:
        return now()

    def new_driver(self, policy: CommitPolicy) -> Driver | None:
        try:
            return Driver(self, policy)
        except HistoryGapError:
            return Driver(self, replace(policy, on_history_gap=self.truth()))

    def truth(self) -> OnHistoryGap:
        """Return what a person who looks into the dataset finds of the epoch in doubt."""
        doubtful = self.log["planned"]
        landed = any(row["epoch"] == doubtful for row in self.dataset.rows())
        return OnHistoryGap(doubtful, landed)

    @precondition(lambda self: self.drivers)
    @rule(
        which=st.integers(0, 2), crash_before_log=st.integers(0, 4).map(bool), meanwhile=MEANWHILE
    )
    def commit(self, which: int, crash_before_log: bool, meanwhile: Meanwhile) -> None:
        driver = self.drivers[which % len(self.drivers)]
        self.meanwhile = meanwhile
        self.step(driver, crash_before_log=not crash_before_log)
        self.meanwhile = None

    def step(self, driver: Driver, *, crash_before_log: bool = False) -> None:
        self.at_work.append(driver)
        try:
            if self.obeys(driver, driver.committer.stop_requested()):
                return
            epoch_id = driver.step_in_spark(crash_before_log=crash_before_log)
        except Crash:
            self.end(driver, release=False)
        except PlannedByAnotherError:
            self.end(driver, release=True)
        except self.accepted:
            # The job releases after every end that it lives to see.
            self.end(driver, release=True)
        else:
            self.reported = max(self.reported, epoch_id)
            if crash_before_log:
                self.end(driver, release=False)
        finally:
            self.at_work.remove(driver)

    @precondition(lambda self: self.drivers)
    @rule(which=st.integers(0, 2))
    def idle(self, which: int) -> None:
        driver = self.drivers[which % len(self.drivers)]
        try:
            self.obeys(driver, driver.committer.stop_requested(poll=True))
        except FencedError:
            owner = decode_query(self.dataset.open().config, QUERY, self.dataset.version).owner
            assert owner is not None
            assert owner.driver.launch_id != driver.launch_id, "fenced by itself"
            self.end(driver, release=True)

    def obeys(self, driver: Driver, request: StopNote | None) -> bool:
        if request is None:
            return False
        assert request.launch_id in ("", driver.launch_id), "meant for another launch"
        asked = int(request.by)
        new = asked > driver.asked_before or asked in self.may_land_late
        assert new or request.launch_id, "asked before this driver started"
        self.end(driver, release=True)
        return True

    def end(self, driver: Driver, *, release: bool) -> None:
        if driver in self.drivers:
            self.drivers.remove(driver)
        if release:
            with suppress(Crash):
                driver.committer.release()

    @precondition(lambda self: self.drivers)
    @rule(which=st.integers(0, 2), meanwhile=MEANWHILE)
    def release(self, which: int, meanwhile: Meanwhile) -> None:
        self.meanwhile = meanwhile
        self.end(self.drivers[which % len(self.drivers)], release=True)
        self.meanwhile = None

    # ------------------------------------------------------------------------------ the world

    @rule(fault=st.sampled_from(list(Fault)), commits=st.integers(0, 4))
    def break_the_store(self, fault: Fault, commits: int) -> None:
        self.dataset.faults = [None] * commits + [fault]

    @rule()
    def compact(self) -> None:
        faults, self.dataset.faults = self.dataset.faults, []
        self.dataset.compact()
        self.dataset.faults = faults

    @rule(keep=st.integers(0, 3))
    def clean_up(self, keep: int) -> None:
        self.dataset.clean_up(self.dataset.version - keep)

    @rule(launch=st.none() | st.integers(0, 6))
    def stop(self, launch: int | None) -> None:
        self.asked += 1
        launch_id = "" if launch is None else f"launch-{self.started - launch}"
        try:
            request_stop(self.dataset.open(), QUERY, QUICK, by=str(self.asked), launch_id=launch_id)
        except CommitStateUnknownError:
            self.may_land_late.add(self.asked)

    def on_step(self, step: Failpoint) -> None:
        if self.meanwhile is None or self.meanwhile[0] is not step:
            return
        (_, what), self.meanwhile = self.meanwhile, None
        if what == "crash":
            raise Crash
        happens: dict[str, Callable[[], Any]] = {
            "steal": self.steal,
            "stale": self.stale,
            "compact": self.compact,
            "clean up": lambda: self.clean_up(0),
            "stop": lambda: self.stop(None),
        }
        happens[what]()

    def steal(self) -> None:
        before = len(self.drivers)
        self.start(10)
        if len(self.drivers) > before:
            self.step(self.drivers[-1])

    def stale(self) -> None:
        # One driver does one thing at a time.
        if others := [driver for driver in self.drivers if driver not in self.at_work]:
            self.step(others[0])

    # ------------------------------------------------------------------------------ the claim

    @property
    def told_as_done(self) -> int:
        """Return the newest epoch whose rows must be there."""
        return self.reported

    def expected(self, epoch_id: int) -> Counter[tuple[int, int]]:
        """Return the rows of a dataset with every epoch up to one."""
        return after(epoch_id, self.mode)

    @invariant()
    def the_dataset_holds_whole_epochs_once(self) -> None:
        found = Counter((row["id"], row["epoch"]) for row in self.dataset.rows())
        twice = sorted(row for row, count in found.items() if count > 1)
        assert not twice, f"twice: {twice}"
        candidates = range(self.told_as_done, self.log.get("planned", -1) + 1)
        assert any(found == self.expected(n) for n in candidates), (
            f"neither of the epochs {candidates} fits: {sorted(found)}"
        )


class Listening(InMemoryDataset):
    """Tells somebody between the landing of a commit and the loss of its answer."""

    tell: Callable[[], None] = staticmethod(lambda: None)

    def commit(self, *commit: Any) -> int:
        lost = bool(self.faults) and self.faults[0] is Fault.LOST_ANSWER
        try:
            return super().commit(*commit)
        except CommitStateUnknownError:
            if lost:
                self.tell()
            raise


class TakenOverInDoubt(Protocol):
    """Another driver takes over before the one in doubt has looked."""

    def new_dataset(self) -> InMemoryDataset:
        made = Listening()
        made.tell = self.meddle
        return made

    def meddle(self) -> None:
        if len(self.drivers) < 3 and self.log:
            self.steal()


class CleanedUpInDoubt(TakenOverInDoubt):
    """The evidence is cleaned up before the driver in doubt has looked."""

    def meddle(self) -> None:
        self.compact()
        self.clean_up(0)


class CleanedUpAfterTakeover(Protocol):
    """The barrier itself is cleaned up as soon as it stands."""

    def steal(self) -> None:
        super().steal()
        self.compact()
        self.clean_up(0)


class FreshHandles(Protocol):
    """Drivers commit on what they saw last, as they do while a handle is fresh; no cleanup then."""

    fresh_seconds = 60.0

    def clean_up(self, keep: int) -> None:
        pass


class WithoutBarrier(FreshHandles):
    """The control: the same random life must show what the barrier is for."""

    barrier = False


@search(quick=300, full=1200)
def test_epochs_land_whole_and_once_whatever_happens(examples: int) -> None:
    run_state_machine_as_test(Protocol, settings=settings(FIXED, max_examples=examples))


@search(quick=100, full=400)
@pytest.mark.parametrize(
    "world", [TakenOverInDoubt, CleanedUpInDoubt, CleanedUpAfterTakeover, FreshHandles]
)
def test_epochs_land_whole_and_once_with_takeovers_and_cleanups(
    world: type[Protocol], examples: int
) -> None:
    run_state_machine_as_test(world, settings=settings(FIXED, max_examples=examples))


def test_control_search_without_the_barrier_finds_a_doubled_row() -> None:
    with pytest.raises(AssertionError, match="twice"):
        run_state_machine_as_test(WithoutBarrier, settings=settings(SEARCH, max_examples=2000))
