"""Whether a driver runs, by every combination of what an observation of it shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.model import Driver
from airflow_provider_lance.supervision.driver_reports import EndReason, write_summary
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import (
    DriverObservation,
    Liveness,
    Sign,
    observe_owner,
)
from tests.support.supervised import summary

RUNNING = Heartbeat("2026-01-01T12:00:00+00:00", "running")
ENDED = replace(RUNNING, state="ended")
SUMMARY = summary(EndReason.STOPPED, released=False)
NOT_HERE = DriverObservation("L1")
HERE = DriverObservation("L1", alive=True)
EXITED = DriverObservation("L1", alive=False)

TABLE = [
    # observation, alive, shown by; then the same with process_first
    (NOT_HERE, (None, Sign.NOTHING), (None, Sign.NOTHING)),
    (HERE, (True, Sign.PROCESS), (True, Sign.PROCESS)),
    (EXITED, (False, Sign.PROCESS), (False, Sign.PROCESS)),
    (replace(NOT_HERE, summary=SUMMARY), (False, Sign.SUMMARY), (False, Sign.SUMMARY)),
    (replace(HERE, summary=SUMMARY), (False, Sign.SUMMARY), (True, Sign.PROCESS)),
    (replace(NOT_HERE, heartbeat=ENDED), (False, Sign.LAST_HEARTBEAT), (True, Sign.HEARTBEAT)),
    (replace(HERE, heartbeat=ENDED), (False, Sign.LAST_HEARTBEAT), (True, Sign.PROCESS)),
    (replace(EXITED, heartbeat=ENDED), (False, Sign.PROCESS), (False, Sign.PROCESS)),
    (replace(NOT_HERE, heartbeat=RUNNING), (True, Sign.HEARTBEAT), (True, Sign.HEARTBEAT)),
    (
        replace(NOT_HERE, heartbeat=RUNNING, silent=60.0),
        (None, Sign.NOTHING),
        (None, Sign.NOTHING),
    ),
    (replace(EXITED, heartbeat=RUNNING), (False, Sign.PROCESS), (False, Sign.PROCESS)),
    (replace(HERE, heartbeat=RUNNING, silent=60.0), (True, Sign.PROCESS), (True, Sign.PROCESS)),
]


@pytest.mark.parametrize(("seen", "usual", "process_first"), TABLE)
def test_liveness_is_shown_by_the_first_sign_that_counts(
    seen: DriverObservation,
    usual: tuple[bool | None, Sign],
    process_first: tuple[bool | None, Sign],
) -> None:
    assert seen.liveness(60.0) == Liveness(*usual)
    assert seen.liveness(60.0, process_first=True) == Liveness(*process_first)


def test_liveness_by_process_first_calls_no_driver_gone_that_the_usual_rule_does_not() -> None:
    for alive, left, beat, silent in product(
        (None, True, False), (None, SUMMARY), (None, RUNNING, ENDED), (0.0, 60.0)
    ):
        seen = DriverObservation("L1", alive=alive, summary=left, heartbeat=beat, silent=silent)
        if seen.liveness(60.0, process_first=True).alive is False:
            assert seen.liveness(60.0).alive is False
        assert seen.liveness(process_first=True).shown_by is not Sign.LAST_HEARTBEAT


OWNER = Driver("run", "id", "/checkpoint", host="elsewhere", pid=1, start="b/1:1", launch_id="L1")


def test_an_owner_on_another_host_is_observed_by_its_summary(tmp_path: Path) -> None:
    opened = []

    def reports(location: str) -> Files:
        opened.append(location)
        return open_files(str(tmp_path))

    assert observe_owner(OWNER, reports).liveness().alive is None
    write_summary(reports(""), replace(SUMMARY, launch_id="L1"))
    assert observe_owner(OWNER, reports, "/moved").liveness().shown_by is Sign.SUMMARY
    assert opened == ["/checkpoint.reports", "", "/moved.reports"]


@pytest.mark.parametrize("error", [SpecError, StorageUnavailableError])
def test_an_owner_whose_reports_cannot_be_read_is_unknown(error: type[Exception]) -> None:
    def reports(location: str) -> Files:
        raise error("not from here")

    assert observe_owner(OWNER, reports).liveness().alive is None
    assert observe_owner(replace(OWNER, launch_id=""), reports).liveness().alive is None
