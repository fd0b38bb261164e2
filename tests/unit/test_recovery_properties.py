"""Random lives of crashes, replays, cleanups and takeovers, checked after every step.

A stream that is broken is never called healthy, one that is not is never called broken, and nothing
is offered for repairing without asking that somebody alive still needs.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from airflow_provider_lance.diagnostics.collect import collect
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.exceptions import HistoryGapError
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.failpoints import CommitResult
from airflow_provider_lance.protocol.model import Epoch, OwnerState, utc_now
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.advice import refuse_bad_advice
from tests.support.drivers import CHECKPOINT_ID, QUERY
from tests.unit.test_protocol_properties import FIXED, Driver, Protocol

MISMATCHED = {
    Code.COMMIT_LOG_AHEAD,
    Code.WATERMARK_JUMPED,
    Code.CHECKPOINT_MISSING,
    Code.CHECKPOINT_FOREIGN,
    Code.CHECKPOINT_OLDER,
}
LONG_AGO = "2020-01-01T00:00:00.000+00:00"


class Shelf:
    """Files in memory, as the checkpoint of a log and the reports of the drivers."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = {path: json.dumps(value).encode() for path, value in content.items()}

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def names(self, path: str) -> list[str]:
        below = f"{path}/" if path else ""
        found = (name.removeprefix(below) for name in self.content if name.startswith(below))
        return sorted({name.split("/", 1)[0] for name in found})


class Checked(Protocol):
    """The random life of a query; each driver leaves heartbeats and a summary, as the job does."""

    told: ClassVar[Counter[Code]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[str, Any] = {}

    @precondition(lambda self: len(self.drivers) < 3)
    @rule(every=st.sampled_from([1, 2, 10]))
    def start(self, every: int) -> None:
        super().start(every)
        self.beat(self.drivers[-1], None)

    def step(self, driver: Driver, *, crash_before_log: bool = False) -> None:
        real = driver.committer.begin
        landed: list[Any] = []

        def begin(epoch_id: int) -> EpochPlan:
            plan = real(epoch_id)
            commit = plan.commit

            def kept(epoch: Epoch) -> CommitResult:
                landed.append(commit(epoch))
                return landed[-1]

            plan.commit = kept  # type: ignore[method-assign]
            return plan

        driver.committer.begin = begin  # type: ignore[method-assign]
        try:
            super().step(driver, crash_before_log=crash_before_log)
        finally:
            driver.committer.begin = real  # type: ignore[method-assign]
            if driver in self.drivers:
                self.beat(driver, landed[0] if landed else None)

    def beat(self, driver: Driver, result: Any) -> None:
        committer = driver.committer
        full = result is not None and result.decision is Decision.FULL_COMMIT
        self.reports[f"{driver.launch_id}/heartbeat.json"] = {
            "queryId": QUERY,
            "time": utc_now(),
            "state": "running",
            "busySince": None,
            "driver": {"token": committer.owner.token if committer.owner else None},
            "sink": {
                "epoch": result.epoch_id if result else None,
                "version": result.version if result else None,
                "rows": 3 if full else 0,
                "watermark": committer.watermark,
            },
            "progress": {"id": CHECKPOINT_ID},
        }

    def end(self, driver: Driver, *, release: bool) -> None:
        super().end(driver, release=release)
        path = f"{driver.launch_id}/heartbeat.json"
        if path in self.reports:
            self.reports[path] = self.reports[path] | {"time": LONG_AGO}
        if release:
            self.reports[f"{driver.launch_id}/summary.json"] = Summary(
                driver.launch_id, QUERY, "", EndReason.STOPPED, 0, 0, 0, 0, None, None, -1, None,
                0, driver.committer.owner is None, 1.0,
            ).to_json()  # fmt: skip

    def found(self, dataset: InMemoryDataset, log: dict[str, int]) -> list[Finding]:
        checkpoint = {"metadata": {"id": CHECKPOINT_ID}} if log else {}
        for folder, word in (("offsets", "planned"), ("commits", "committed")):
            if log.get(word, -1) >= 0:
                checkpoint[f"{folder}/{log[word]}"] = {}
        shelves = {"/checkpoint": Shelf(checkpoint), "/checkpoint.reports": Shelf(self.reports)}
        seen = collect(
            dataset.open(),
            QUERY,
            checkpoint_location="/checkpoint",
            files=shelves.__getitem__,  # type: ignore[arg-type]
        )
        # Heartbeats are young or very old; what was committed is to be neither.
        found = evaluate_rules(replace(seen, seen_at=seen.seen_at + timedelta(hours=1)))
        self.told.update(each.code for each in found)
        for each in found:
            refuse_bad_advice(each)
        return found

    @invariant()
    def what_is_said_is_so(self) -> None:
        if not self.log:
            return
        found = self.found(self.dataset, self.log)
        codes = {each.code for each in found}
        assert not codes & MISMATCHED, [each.summary for each in found]
        owner = decode_query(self.dataset.open().config, QUERY, self.dataset.version).owner
        healthy = found[0].code is Code.HEALTHY
        active = owner is not None and owner.state is OwnerState.ACTIVE
        if active and not self.drivers:
            assert not healthy, "nobody is at work"
        if self.would_refuse():
            assert Code.HISTORY_GAP in codes
            assert not healthy, "the next start refuses"
        if self.few_launches:
            assert (len(self.drivers) > 1) == (Code.TWO_DRIVERS in codes)
        if any(each.repair is Repair.OWNER for each in found):
            assert owner is not None
            assert owner.driver.launch_id not in {each.launch_id for each in self.drivers}

    @property
    def few_launches(self) -> bool:
        """Tell whether all of them are looked at."""
        return len({path.split("/")[0] for path in self.reports}) <= 5

    def would_refuse(self) -> bool:
        log = Driver.look(self)  # type: ignore[arg-type]
        try:
            DriverSession(self.dataset.open(), QUERY, log, look=lambda: log).prepare()
        except HistoryGapError:
            return True
        return False

    _id = CHECKPOINT_ID


class Tampered(Checked):
    """The same, and now and then somebody does what no driver does; it is put right at once."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: InMemoryDataset | None = None

    @rule()
    def keep(self) -> None:
        self.kept = copy_of(self.dataset)

    @precondition(lambda self: self.kept is not None and self.known)
    @rule()
    def roll_back(self) -> None:
        assert self.kept
        there = {row["epoch"] for row in self.kept.rows()}
        now = {row["epoch"] for row in self.dataset.rows()}
        reported = {
            beat["sink"]["epoch"]
            for path, beat in self.reports.items()
            if path.endswith("heartbeat.json") and beat["sink"]["rows"]
        }
        lost = (reported & now) - there
        if lost and self.few_launches:
            self.expect_critical(self.kept, self.log)

    @precondition(lambda self: self.known)
    @rule(by=st.integers(1, 3))
    def jump(self, by: int) -> None:
        changed = copy_of(self.dataset)
        ahead = {key("lastEpoch", QUERY): str(self.log["planned"] + by)}
        changed.open().commit(Configure(dict(ahead)))
        self.expect_critical(changed, self.log)

    @precondition(lambda self: self.known)
    @rule(planned=st.integers(0, 3))
    def put_an_older_checkpoint_back(self, planned: int) -> None:
        newest = max((row["epoch"] for row in self.dataset.rows()), default=-1)
        missing = Code.HISTORY_GAP in {each.code for each in self.found(self.dataset, self.log)}
        if planned < newest and not missing:
            older = {"planned": planned, "committed": planned - 1}
            self.expect_critical(self.dataset, older)

    @precondition(lambda self: self.known)
    @rule()
    def delete_the_checkpoint(self) -> None:
        codes = [each.code for each in self.found(self.dataset, {})]
        assert Code.CHECKPOINT_MISSING in codes

    @precondition(lambda self: self.log.get("committed", -1) >= 0)
    @rule()
    def make_the_dataset_anew(self) -> None:
        self.expect_critical(InMemoryDataset(), self.log)

    @property
    def known(self) -> bool:
        return (
            bool(self.log)
            and decode_query(self.dataset.open().config, QUERY, self.dataset.version).known
        )

    def expect_critical(self, dataset: InMemoryDataset, log: dict[str, int]) -> None:
        found = self.found(dataset, log)
        assert found[0].severity is Severity.CRITICAL, [each.summary for each in found]
        assert {each.repair for each in found} == {None}


def copy_of(dataset: InMemoryDataset) -> InMemoryDataset:
    made = copy(dataset)
    made._versions, made._files = dict(dataset._versions), set(dataset._files)
    made.faults, made._late = [], None
    return made


def test_check_is_right_in_every_state_a_stream_reaches() -> None:
    Checked.told.clear()
    run_state_machine_as_test(Checked, settings=settings(FIXED, max_examples=300))
    for code in (
        Code.HEALTHY,
        Code.DRIVER_GONE,
        Code.TWO_DRIVERS,
        Code.HISTORY_GAP,
        Code.WATERMARK_BEHIND,
        Code.EPOCH_IN_FLIGHT,
        Code.EPOCH_TO_SKIP,
    ):
        assert Checked.told[code] > 5, code


def test_check_calls_no_tampered_stream_healthy() -> None:
    Checked.told.clear()
    run_state_machine_as_test(Tampered, settings=settings(FIXED, max_examples=300))
    for code in MISMATCHED - {Code.CHECKPOINT_FOREIGN}:
        assert Checked.told[code] > 5, code
