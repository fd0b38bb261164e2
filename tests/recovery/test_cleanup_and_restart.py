"""Cleanup with the shortest settings between a crash and a restart: the restart is still exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import lance
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    FencedError,
    HistoryGapError,
)
from airflow_provider_lance.maintenance import cleanup
from airflow_provider_lance.maintenance.cleanup import Retention, clean_up
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.maintenance.dataset_metrics import Version
from airflow_provider_lance.maintenance.options import KEEP_SECONDS
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, Moment, now
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.port import Change, Configure
from airflow_provider_lance.testing.dataset import InMemoryDataset, InMemoryDatasetPort
from tests.support.drivers import QUICK, SparkLike
from tests.support.maintenance import age, numbers, stream
from tests.support.searches import search
from tests.unit.test_protocol_properties import FIXED, SEARCH, Crash, Protocol, after, rows_of

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
EAGER = Retention(older_than=0, keep_active=0)
MODES = pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def tidy(uri: str) -> None:
    """Compact, let somebody else commit, and remove all that may go."""
    compact(open_dataset(uri), {})
    open_dataset(uri).commit(Configure({"user.key": "1"}))
    clean_up(open_dataset(uri), EAGER)
    assert len(numbers(uri)) <= 2


def untidy(uri: str) -> None:
    """Do the same without the fold: the control."""
    compact(open_dataset(uri), {})
    open_dataset(uri).commit(Configure({"user.key": "1"}))
    newest = open_dataset(uri).version
    if old := [number for number in numbers(uri) if number < newest]:
        lance.dataset(uri).cleanup_old_versions(versions=old)


def advance(driver: SparkLike, epochs: int = 1) -> None:
    for _ in range(epochs):
        assert driver.next is not None
        driver.step(rows_of(driver.next, driver.mode))


def expect_whole_epochs(uri: str, last: int, mode: OutputMode) -> None:
    table = lance.dataset(uri).to_table().to_pylist()
    assert Counter((row["id"], row["epoch"]) for row in table) == after(last, mode)


class KilledAt:
    """Ends a driver the ``nth`` time it reaches a step."""

    def __init__(self, step: Failpoint, nth: int = 1) -> None:
        self.step, self.left = step, nth

    def __call__(self, step: Failpoint) -> None:
        if step is self.step:
            self.left -= 1
            if self.left == 0:
                raise Crash


def run_until_killed(driver: SparkLike, epochs: int) -> None:
    def run() -> None:
        advance(driver, epochs)
        driver.committer.release()

    with pytest.raises(Crash):
        run()


def killed(uri: str, mode: OutputMode, at: Failpoint, *, every: int, ended: bool) -> dict[str, int]:
    """Leave behind a driver that was killed at a step, after one that was killed or ended."""
    log: dict[str, int] = {}
    first = stream(uri, mode=mode, log=log, run_id="first", every=every)
    advance(first, 2)
    if ended:
        assert first.committer.release()
    second = stream(uri, mode=mode, log=log, run_id="second", every=every, on_step=KilledAt(at))
    run_until_killed(second, 2)
    return log


@MODES
@pytest.mark.parametrize("at", list(Failpoint))
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("every", [1, 10])
def test_a_restart_after_kill_and_cleanup_is_exact(
    uri: str, mode: OutputMode, at: Failpoint, ended: bool, every: int
) -> None:
    log = killed(uri, mode, at, every=every, ended=ended)
    tidy(uri)
    successor = stream(uri, mode=mode, log=log, run_id="third", every=every)
    advance(successor, 2)
    tidy(uri)
    assert log["committed"] == log["planned"] >= 3
    expect_whole_epochs(uri, log["committed"], mode)


@MODES
def test_an_epoch_that_landed_is_known_after_the_cleanup(uri: str, mode: OutputMode) -> None:
    log = killed(uri, mode, Failpoint.COMMIT_LANDED, every=10, ended=False)
    assert log == {"planned": 2, "committed": 1}
    tidy(uri)
    successor = stream(uri, mode=mode, log=log)
    result = successor.step(rows_of(2, mode))
    assert result.decision is Decision.SKIP_REPLAY
    expect_whole_epochs(uri, 2, mode)


@MODES
def test_control_the_same_cleanup_without_a_fold_eats_the_evidence(
    uri: str, mode: OutputMode
) -> None:
    log = killed(uri, mode, Failpoint.COMMIT_LANDED, every=10, ended=False)
    untidy(uri)
    with pytest.raises(HistoryGapError):
        stream(uri, mode=mode, log=log)


@MODES
def test_killed_and_cleaned_up_again_and_again(uri: str, mode: OutputMode) -> None:
    log: dict[str, int] = {}
    for turn, step in enumerate(list(Failpoint) * 2):
        driver = stream(
            uri, mode=mode, log=log, run_id=f"run-{turn}", every=3, on_step=KilledAt(step)
        )
        run_until_killed(driver, 3)
        tidy(uri)
    advance(stream(uri, mode=mode, log=log, run_id="last"), 2)
    expect_whole_epochs(uri, log["committed"], mode)


# ------------------------------------------------------------------- drivers that hang and wake


class Hangs:
    """Lets others work while a driver stands at a step of its second epoch."""

    def __init__(self, meanwhile: Any) -> None:
        self.meanwhile, self.checked = meanwhile, 0

    def __call__(self, step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED:
            self.checked += 1
            if self.checked == 2:
                self.meanwhile()


@MODES
@pytest.mark.parametrize("released", [False, True])
def test_a_driver_that_hung_and_wakes_is_fenced(uri: str, mode: OutputMode, released: bool) -> None:
    """The default floor keeps the barrier, also when the successor has ended in order."""
    log: dict[str, int] = {}

    def meanwhile() -> None:
        successor = stream(uri, mode=mode, log=log, run_id="successor")
        advance(successor, 3)
        if released:
            assert successor.committer.release()
        compact(open_dataset(uri), {})
        clean_up(open_dataset(uri), Retention(older_than=0))

    driver = stream(uri, mode=mode, log=log, on_step=Hangs(meanwhile), run_id="hung")
    advance(driver)
    with pytest.raises(FencedError) as caught:
        advance(driver)
    assert "twice" not in str(caught.value)
    assert not driver.committer.release()
    expect_whole_epochs(uri, 3, mode)


@MODES
def test_a_driver_that_hung_for_longer_than_the_floor_looks_for_itself(
    uri: str, mode: OutputMode
) -> None:
    log: dict[str, int] = {}
    hung = 0.0

    def meanwhile() -> None:
        nonlocal hung
        successor = stream(uri, mode=mode, log=log, run_id="successor")
        advance(successor, 3)
        compact(open_dataset(uri), {})
        age(uri, KEEP_SECONDS + 1)
        clean_up(open_dataset(uri), Retention(older_than=0))
        assert len(numbers(uri)) == 1, "the barrier is gone"
        hung = KEEP_SECONDS + 1

    def clock() -> Moment:
        return Moment(now().boot + hung, 0.0)

    policy = CommitPolicy(backoff=QUICK, clock=clock)
    driver = stream(uri, mode=mode, log=log, on_step=Hangs(meanwhile), policy=policy)
    advance(driver)
    with pytest.raises(FencedError):
        advance(driver)
    expect_whole_epochs(uri, 3, mode)


@MODES
@pytest.mark.parametrize(
    "at", [Failpoint.CLAIM_OPENED, Failpoint.CLAIM_OWNED, Failpoint.CLAIM_BARRED]
)
def test_a_cleanup_in_the_middle_of_a_claim_is_no_gap(
    uri: str, mode: OutputMode, at: Failpoint
) -> None:
    """It folded before it removed, which the driver sees when it looks again."""
    log: dict[str, int] = {}
    advance(stream(uri, mode=mode, log=log, run_id="first", every=10))

    to_come = [at]

    def on_step(step: Failpoint) -> None:
        if to_come == [step]:
            to_come.clear()
            tidy(uri)

    successor = stream(uri, mode=mode, log=log, run_id="second", on_step=on_step)
    advance(successor)
    assert not to_come
    expect_whole_epochs(uri, 1, mode)


def test_control_without_the_floor_a_driver_that_wakes_at_once_doubles(uri: str) -> None:
    log: dict[str, int] = {}

    def meanwhile() -> None:
        advance(stream(uri, log=log, run_id="successor"), 3)
        clean_up(open_dataset(uri), EAGER)

    driver = stream(uri, log=log, on_step=Hangs(meanwhile), run_id="hung")
    advance(driver)
    with pytest.raises(FencedError, match=r"epoch 1 .* landed as version \d+"):
        advance(driver)
    assert Counter(row["epoch"] for row in lance.dataset(uri).to_table().to_pylist())[1] == 6


# ------------------------------------------------------------------------- a random life beside it


class TidyPort(InMemoryDatasetPort):
    """The twin with what a cleanup asks of pylance."""

    @property
    def dataset(self) -> TidyPort:
        return self

    def latest(self) -> TidyPort:
        return TidyPort(self._dataset, self._dataset.version)

    def commit(self, change: Change, properties: Any = None) -> TidyPort:
        return TidyPort(self._dataset, super().commit(change, properties).version)

    def cleanup_old_versions(self, *, versions: Sequence[int], **kwargs: Any) -> Any:
        self._dataset.clean_up(max(versions) + 1)
        removed = SimpleNamespace(old_versions=len(versions), data_files_removed=0)
        removed.bytes_removed = removed.failed_deletes = 0
        return removed


def versions_of(port: TidyPort, storage_options: object = None) -> list[Version]:
    known = range(1, port.version + 1)
    return [Version(n, 1, LONG_AGO) for n in known if port.properties(n) is not None]


class Maintained(Protocol):
    """Nobody cleans up but our own cleanup, with the shortest settings, at any moment.

    A query then never stops for want of evidence, and the sole errors are those of other drivers
    and of the store.
    """

    accepted = (FencedError, CommitStateUnknownError)

    @rule(keep=st.integers(0, 3))
    def clean_up(self, keep: int) -> None:
        retention = Retention(older_than=0, keep_active=0, retain_versions=keep + 1)
        port: Any = TidyPort(self.dataset, self.dataset.version)
        with patch.object(cleanup, "list_versions", versions_of):
            try:
                clean_up(port, retention)
            except CommitStateUnknownError:
                return  # the store was broken on purpose; what was folded stays folded

    def truth(self) -> Any:
        raise AssertionError("a restart found a gap that our own cleanup left")


class WithoutFold(Maintained):
    """The control: the same cleanup, but of versions above a fold as well."""

    @rule(keep=st.integers(0, 3))
    def clean_up(self, keep: int) -> None:
        self.dataset.clean_up(self.dataset.version - keep)


@search(quick=150, full=500)
def test_cleanup_leaves_no_gap_whatever_happens(examples: int) -> None:
    run_state_machine_as_test(Maintained, settings=settings(FIXED, max_examples=examples))


def test_control_the_same_life_with_a_cleanup_that_does_not_fold_finds_a_gap() -> None:
    with pytest.raises((AssertionError, HistoryGapError), match="gap|cleaned up"):
        run_state_machine_as_test(WithoutFold, settings=settings(SEARCH, max_examples=500))


def test_the_twin_is_cleaned_up_by_the_same_code() -> None:
    dataset = InMemoryDataset()
    for number in range(4):
        dataset.open().commit(Configure({"a": str(number)}))
    port: Any = TidyPort(dataset, dataset.version)
    with patch.object(cleanup, "list_versions", versions_of):
        clean_up(port, EAGER)
        assert [version.number for version in versions_of(port)] == [5]
