"""What findings tell an on-call engineer: which command, whom to clear, what may be repaired."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair
from airflow_provider_lance.diagnostics.rules import evaluate_rules, unreadable_finding
from tests.support.recovery_evidence import (
    FAILED,
    GONE,
    OTHER,
    RELEASED,
    URI,
    at,
    checkpoint,
    driver,
    owner,
    seen,
    stamp,
    state,
    watermark,
)


def only(code: Code, **changes: Any) -> Finding:
    return next(each for each in evaluate_rules(seen(**changes)) if each.code is code)


def test_commands_are_quoted_for_a_shell() -> None:
    gone = only(Code.DRIVER_GONE, drivers=(GONE,), connection_arguments="--conn-id lance_default")
    assert gone.command == (
        "lance-stream release '/data/my table.lance' q --yes --conn-id lance_default"
    )
    assert shlex.split(gone.command)[2] == URI


def test_command_repeats_the_checkpoint_that_was_given() -> None:
    gone = only(Code.DRIVER_GONE, drivers=(GONE,), checkpoint_location="/copy of/cp")
    assert gone.command.endswith("q --yes --checkpoint '/copy of/cp'")


def test_owner_finding_has_a_repair_only_if_its_driver_is_proven_dead() -> None:
    assert only(Code.DRIVER_GONE, drivers=(GONE,)).repair is Repair.OWNER
    silent = (driver(alive=None, silent=300.0),)
    finding = only(Code.DRIVER_GONE, drivers=silent)
    assert finding.repair is None
    assert "--yes" not in finding.command
    assert "cannot be proven" in finding.cause


def test_findings_have_no_repair_when_rows_may_be_lost() -> None:
    evidence = seen(
        drivers=(GONE,), checkpoint=checkpoint(3, 3), watermark=watermark(5, stamp(5, 11))
    )
    found = evaluate_rules(replace(evidence, state=state(4)))
    assert [each.code for each in found] == [
        Code.CHECKPOINT_OLDER,
        Code.DRIVER_GONE,
        Code.WATERMARK_BEHIND,
    ]
    assert [each.repair for each in found] == [None, None, None]


def test_an_epoch_to_skip_says_where_it_is() -> None:
    skip = only(
        Code.EPOCH_TO_SKIP,
        state=state(**RELEASED),
        drivers=(GONE,),
        checkpoint=checkpoint(5, 4),
    )
    assert skip.evidence["epochVersion"] == 10


def test_watermark_finding_has_a_repair_only_if_no_driver_will_fold() -> None:
    behind = {"state": state(4), "watermark": watermark(5, stamp(5, 11))}
    assert only(Code.WATERMARK_BEHIND, **behind).repair is None
    assert only(Code.WATERMARK_BEHIND, **behind, drivers=(GONE,)).repair is Repair.WATERMARK


def test_a_gap_names_both_answers() -> None:
    gap = only(
        Code.HISTORY_GAP,
        watermark=watermark(missing=1, missing_above=1),
        missing_versions=(11,),
        checkpoint=checkpoint(6),
        drivers=(GONE,),
    )
    assert gap.evidence["inDoubt"] == 6
    assert gap.evidence["ifCommitted"].endswith("q --epoch 6 --after-version 10 --committed")
    assert gap.evidence["ifMissing"].endswith("q --epoch 6 --after-version 10 --missing")
    assert gap.evidence["ifCommitted"].startswith("lance-stream resolve gap ")


def test_of_two_drivers_the_owner_is_kept() -> None:
    two = only(Code.TWO_DRIVERS, drivers=(driver("L2", process=OTHER, token=None), driver()))
    assert two.command == "kill 200"
    assert two.evidence["keep"]["launchId"] == "L1"


def test_cause_of_a_lost_driver_names_the_task_to_clear() -> None:
    by = owner(launched_by="my_dag/flights/manual__2026-01-01T00:00:00/3#2")
    gone = only(Code.DRIVER_GONE, drivers=(GONE,), state=state(owner=by))
    parts = ("task flights", "DAG my_dag,", "run manual__2026-01-01T00:00:00,", "map index 3")
    assert [each for each in parts if each not in gone.cause] == []


def test_a_transient_failure_is_told_from_a_terminal_one() -> None:
    released = state(**RELEASED)
    ended = driver(summary=replace(FAILED, error="StorageUnavailableError"), alive=False)
    transient = only(Code.QUERY_FAILED, state=released, drivers=(ended,))
    assert (transient.evidence["terminal"], transient.cause[:9]) == (False, "Transient")
    ended = driver(summary=FAILED, alive=False)
    terminal = only(Code.QUERY_FAILED, state=released, drivers=(ended,))
    assert (terminal.evidence["terminal"], terminal.cause[:8]) == (True, "Terminal")
    assert terminal.summary.endswith("SchemaMismatchError: column x")


def test_a_users_exception_is_told_in_full() -> None:
    said = (
        'f raised ValueError: no price\nTraceback (most recent call last):\n  File "a.py", line 1'
    )
    failed = replace(FAILED, error="UserFunctionError", message=said)
    ended = driver(summary=failed, alive=False)
    found = only(Code.QUERY_FAILED, state=state(**RELEASED), drivers=(ended,))
    assert found.summary.endswith("UserFunctionError: f raised ValueError: no price")
    assert found.cause.endswith('\nTraceback (most recent call last):\n  File "a.py", line 1')
    assert found.evidence["message"] == said


def test_tolerance_moves_the_limit_of_a_finding() -> None:
    evidence = seen(checkpoint=checkpoint(6, planned_at=at(50)))
    assert evaluate_rules(evidence, Tolerance(stall=40))[0].code is Code.STALLED


def test_a_query_that_cannot_be_read_is_a_finding() -> None:
    finding = unreadable_finding("q", ValueError("protocol 2"), 7)
    assert finding.code is Code.PROTOCOL_NEWER
    assert "protocol 2" in finding.summary
