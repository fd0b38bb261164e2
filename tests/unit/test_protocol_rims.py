"""Random lives beside somebody who restores, recreates, cleans up and edits the dataset.

What the protocol must keep is stated over what Spark has been told: once an epoch is in Spark's
commit log, no driver may start or commit while its rows are missing, unless a person has said
that they know. The twin's rows tell; nothing that the protocol says is believed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetNotFoundError,
    HistoryGapError,
    LanceStreamError,
    TerminalError,
)
from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.commit_policy import (
    CommitPolicy,
    Moment,
    OnHistoryGap,
    OnRestore,
)
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.port import Append, Configure
from airflow_provider_lance.testing.dataset import Fault
from tests.support.drivers import QUERY, QUICK
from tests.support.searches import search
from tests.unit.test_protocol_properties import FIXED, Driver, Protocol, after, settings

FOREIGN = {"id": -1, "epoch": -1}

GARBAGE = [
    "999",
    "-1",
    "-7",
    "1e3",
    "",
    "null",
    "[]",
    "Infinity",
    '{"token":-1}',
    "[" * 5000,
    "9" * 5000,
]


class Rims(Protocol):
    """A query whose dataset somebody changes from outside."""

    accepted = (LanceStreamError,)
    fresh_seconds = 60.0

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[int] = set()
        """Epochs whose loss a person has accepted."""

        self.clock = 0.0

    def now(self) -> Moment:
        return Moment(self.clock, 0.0)

    def idle(self, which: int) -> None:
        driver = self.drivers[which % len(self.drivers)]
        try:
            super().idle(which)
        except TerminalError:
            self.end(driver, release=True)

    @property
    def told_as_done(self) -> int:
        return NO_EPOCH if self.damaged else self.done

    @property
    def done(self) -> int:
        return self.log.get("committed", NO_EPOCH)

    def expected(self, epoch_id: int) -> Counter[tuple[int, int]]:
        return after(epoch_id, self.mode, self.lost)

    def held(self, rows: Any = None) -> int | None:
        """Return the epoch up to which the rows are there, ``None`` if they are no such state."""
        rows = self.dataset.rows() if rows is None else rows
        found = Counter((row["id"], row["epoch"]) for row in rows)
        planned = self.log.get("planned", NO_EPOCH)
        candidates = range(planned, NO_EPOCH - 1, -1)
        return next((n for n in candidates if found in self.states(n, planned)), None)

    def states(self, held: int, planned: int) -> list[Counter[tuple[int, int]]]:
        """Return what may be there with the epochs up to one, and maybe the one in flight.

        It lands before its driver notices that those before it are gone, and ends.
        """
        between = range(held + 1, planned)
        return [self.expected(held), after(planned, self.mode, self.lost | set(between))]

    @property
    def damaged(self) -> bool:
        """Tell whether rows are missing of epochs that Spark has as done."""
        held = self.held()
        assert held is not None, "no whole epochs"
        return self.expected(held) != self.expected(max(held, self.done))

    def the_dataset_holds_whole_epochs_once(self) -> None:
        """Hold, too, while epochs are missing; then no driver may go on."""
        found = Counter((row["id"], row["epoch"]) for row in self.dataset.rows())
        assert max(found.values(), default=1) == 1, "twice"
        assert self.held() is not None, f"no whole epochs: {sorted(found)}"

    def new_driver(self, policy: CommitPolicy) -> Driver | None:
        try:
            driver = Driver(self, policy)
        except HistoryGapError:
            return self.answered(policy)
        except TerminalError:
            return self.repaired(policy)
        assert not self.damaged, f"started although epochs after {self.held()} are gone"
        return driver

    def step(self, driver: Driver, *, crash_before_log: bool = False) -> None:
        before = self.done
        super().step(driver, crash_before_log=crash_before_log)
        if self.done > before and driver.decision == "FULL_COMMIT":
            assert not self.damaged, f"went on although epochs after {self.held()} are gone"

    def end(self, driver: Driver, *, release: bool) -> None:
        with suppress(LanceStreamError):  # the job notes it, and ends
            super().end(driver, release=release)

    def answered(self, policy: CommitPolicy) -> Driver | None:
        """Start again as a person does who has looked into the dataset."""
        held, planned = self.held(), self.log["planned"]
        assert held is not None
        if held < self.done and policy.on_restore == OnRestore():
            return self.repaired(policy)
        landed = any(row["epoch"] == planned for row in self.dataset.rows())
        try:
            return Driver(self, replace(policy, on_history_gap=OnHistoryGap(planned, landed)))
        except TerminalError:
            return None

    def repaired(self, policy: CommitPolicy) -> Driver | None:
        """Bring the rows back if a version still has them, or accept that they are gone."""
        held = self.held()
        if held is None or not self.damaged:
            return None
        for version in range(self.dataset.version, 0, -1):
            found = self.dataset.at(version)
            rows = [row for each in found.fragments.values() for row in each] if found else []
            if found and (self.held(rows) or NO_EPOCH) >= self.done:
                self.dataset.faults = []
                self.dataset.restore(version)
                return None
        gone = range(held + 1, self.done + 1)
        # History may be gone that would show which of the earlier epochs are still there.
        policy = replace(policy, on_restore=OnRestore(0, gone[-1]))
        known, self.lost = self.lost, self.lost | set(gone)
        try:
            return Driver(self, policy)
        except HistoryGapError:
            return self.answered(policy)
        except CheckpointMismatchError:
            self.lost = known  # restored to before the query: it cannot go on here
            return None


class Restored(Rims):
    """Somebody brings an older version back, and may clean up after that."""

    @precondition(lambda self: self.log and not self.at_work and not self.lost)
    @rule(back=st.integers(1, 8))
    def restore(self, back: int) -> None:
        version = self.dataset.version - back
        if version > 1 and self.dataset.at(version):
            faults, self.dataset.faults = self.dataset.faults, []
            self.dataset.restore(version)
            self.dataset.faults = faults


class PausedLinks(Rims):
    """A writer is paused inside Lance while others take its version number and clean it up."""

    @rule(
        commits=st.integers(0, 3),
        others=st.integers(0, 5),
        cleans=st.booleans(),
    )
    def pause_a_link(self, commits: int, others: int, cleans: bool) -> None:
        def meanwhile() -> None:
            # No cleanup removes what is younger than a fresh handle.
            self.clock += 100.0 if cleans else 10.0
            for number in range(others):
                self.dataset.open().commit(Configure({"somebody's": str(number)}))
            if cleans:
                self.dataset.clean_up(self.dataset.version)

        self.dataset.while_paused = meanwhile
        self.dataset.faults = [None] * commits + [Fault.PAUSED]


class Recreated(Rims):
    """Somebody drops the dataset and makes another under its name."""

    def __init__(self) -> None:
        super().__init__()
        self.anew = False
        self.commits_since = 0

    @precondition(
        lambda self: (
            not self.anew and self.done >= 0 and all(each.committer.owner for each in self.drivers)
        )
    )
    @rule(versions=st.integers(0, 12))
    def recreate(self, versions: int) -> None:
        self.dataset.faults = []
        self.dataset.recreate()
        for _ in range(versions):
            self.dataset.open().commit(Append([(FOREIGN,)]))
        self.anew = True

    def step(self, driver: Driver, *, crash_before_log: bool = False) -> None:
        Protocol.step(self, driver, crash_before_log=crash_before_log)
        if self.anew and driver in self.drivers:
            driver.commits_since += 1
            limit = driver.fold_every + 1
            assert driver.commits_since <= limit, "does not notice that the dataset is another"

    def new_driver(self, policy: CommitPolicy) -> Driver | None:
        try:
            driver = Driver(self, policy)
        except TerminalError:
            return None
        assert not self.anew, "started on another dataset"
        return driver

    def compact(self) -> None:
        with suppress(DatasetNotFoundError):
            super().compact()

    def the_dataset_holds_whole_epochs_once(self) -> None:
        """Hold only until the dataset is another."""
        if not self.anew:
            super().the_dataset_holds_whole_epochs_once()


class Garbled(Rims):
    """Another tool writes into the config."""

    @precondition(lambda self: self.log and not self.at_work)
    @rule(
        word=st.sampled_from(["lastEpoch", "lastEpochVersion", "owner", "stop"]),
        value=st.sampled_from(GARBAGE),
    )
    def garble(self, word: str, value: str) -> None:
        self.dataset.faults = []
        self.dataset.open().commit(Configure({"somebody's": "own"}))  # a late write lands now
        kept = self.dataset.open().config.get(key(word, QUERY))
        self.dataset.open().commit(Configure({key(word, QUERY): value}))
        for driver in list(self.drivers):
            self.step(driver)
        with suppress(TerminalError):
            self.drivers.append(Driver(self, CommitPolicy(backoff=QUICK)))
            self.step(self.drivers[-1])
        self.drivers.clear()
        self.dataset.open().commit(Configure({key(word, QUERY): kept}))


WORLDS = [Restored, PausedLinks, Recreated, Garbled]


@search(quick=100, full=400)
@pytest.mark.parametrize("world", WORLDS)
def test_no_epoch_is_lost_without_an_error(world: type[Rims], examples: int) -> None:
    run_state_machine_as_test(world, settings=settings(FIXED, max_examples=examples))
