"""What findings tell an on-call engineer: which command, whom to clear, what may be repaired."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_lance.diagnostics.collect_drivers import health_of
from airflow_provider_lance.diagnostics.evidence import USUAL, Tolerance, Undone
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules, unreadable_finding
from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.model import ByHand, OwnerState, StopNote
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.recovery_evidence import (
    FAILED,
    GONE,
    NOW,
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

from .test_rules import ROWS


def only(code: Code, **changes: Any) -> Finding:
    return next(each for each in evaluate_rules(seen(**changes)) if each.code is code)


def test_commands_are_quoted_for_a_shell() -> None:
    gone = only(Code.DRIVER_GONE, drivers=(GONE,), connection_arguments="--conn-id lance_default")
    assert gone.command == (
        "lance-stream release '/data/my table.lance' q --for-good --yes --conn-id lance_default"
    )
    assert shlex.split(gone.command)[2] == URI


def test_command_repeats_the_checkpoint_that_was_given() -> None:
    gone = only(Code.DRIVER_GONE, drivers=(GONE,), checkpoint_location="/copy of/cp")
    assert gone.command.endswith("q --for-good --yes --checkpoint '/copy of/cp'")


def test_owner_finding_has_a_repair_only_if_its_driver_is_proven_dead() -> None:
    assert only(Code.DRIVER_GONE, drivers=(GONE,)).repair is Repair.OWNER
    silent = (driver(alive=None, silent=300.0),)
    finding = only(Code.DRIVER_GONE, drivers=silent)
    assert finding.repair is None
    assert finding.steps[-1].host == "host", "only there it is seen to be dead"
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
    assert gap.evidence["ifCommitted"].endswith("q --epoch 6 --after-version 10 --committed --yes")
    assert gap.evidence["ifMissing"].endswith("q --epoch 6 --after-version 10 --missing --yes")
    assert gap.evidence["ifCommitted"].startswith("lance-stream resolve gap ")


def test_of_two_drivers_the_owner_is_kept() -> None:
    two = only(Code.TWO_DRIVERS, drivers=(driver("L2", process=OTHER, token=None), driver()))
    assert (two.command, two.steps[0].host) == ("kill -KILL 200", "host")
    assert two.evidence["keep"]["launchId"] == "L1"


def test_a_lost_driver_names_the_task_to_clear_the_command_and_the_link() -> None:
    by = owner(launched_by="my_dag/a.flights/manual__2026-01-01T00:00:00+00:00/3#2")
    lost = {"drivers": (GONE,), "state": state(owner=by)}
    step = only(Code.DRIVER_GONE, **lost, airflow_url="https://airflow.example/").steps[0]
    assert step.text == (
        "Either clear task a.flights of DAG my_dag, run manual__2026-01-01T00:00:00+00:00, map "
        "index 3: it starts the stream again."
    )
    assert step.command == (
        "airflow lance clear-task my_dag manual__2026-01-01T00:00:00+00:00 a.flights "
        "--map-index 3 --yes"
    )
    assert step.link == (
        "https://airflow.example/dags/my_dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
        "/tasks/a.flights/mapped/3"
    )
    assert only(Code.DRIVER_GONE, **lost).steps[0].link == ""


def released(what: str, *, newest: Any = GONE, **changes: Any) -> dict[str, Any]:
    """Return a query that a repair has released, after the driver's end."""
    by_hand = replace(
        owner(OwnerState.RELEASED, run_id=ByHand(what, "ann").run_id("0a1b2c3d")), time=at(1)
    )
    known = state(owner=by_hand, **changes)
    health = health_of(
        (newest,), known, watermark=watermark(), checkpoint=checkpoint(), tolerance=USUAL, now=NOW,
        reports_unreadable=False,
    )  # fmt: skip
    return {"state": known, "drivers": (newest,), "health": health}


@pytest.mark.parametrize(
    "what",
    ["released", "epoch 3 resolved as missing", "checkpoint resolved", "offsets/4 set aside"],
)
def test_a_release_by_hand_is_not_an_orderly_stop(what: str) -> None:
    found = only(Code.DRIVER_GONE, **released(what))
    assert found.summary == (
        f"Nobody runs query q: {what} by ann 1 s ago, and no driver has claimed it since; the "
        "watermark is 5."
    )
    assert found.severity is Severity.ERROR
    assert found.steps[0].text == "Either start the stream again."
    assert found.command.endswith(" --for-good --yes")


def test_what_refuses_a_start_comes_before_the_advice_to_start() -> None:
    found = evaluate_rules(seen(drivers=(GONE,), checkpoint=checkpoint(id="cp-2")))
    assert [each.code for each in found[:2]] == [Code.CHECKPOINT_FOREIGN, Code.DRIVER_GONE]
    assert [step.text for step in found[1].steps] == ["Do what LS302 says first."]


def test_a_release_for_good_and_a_stop_request_after_a_release_are_meant() -> None:
    note = StopNote(2, by="bob", time=at(0))
    for healthy in (
        released(ByHand.FOR_GOOD),
        released(ByHand.RELEASED, stop_token=2, stop_note=note),
    ):
        assert healthy["health"].state is StreamState.STOPPED
        assert evaluate_rules(seen(**healthy))[0].code is Code.HEALTHY


def test_a_release_by_hand_does_not_end_what_made_the_query_fail() -> None:
    failed = driver(summary=FAILED, alive=False)
    found = only(Code.QUERY_FAILED, **released(ByHand.RELEASED, newest=failed))
    assert "SchemaMismatchError" in found.summary
    resolved = evaluate_rules(seen(**released("epoch 3 resolved as missing", newest=failed)))
    assert [each.code for each in resolved] == [Code.DRIVER_GONE]


@pytest.mark.parametrize("name", ROWS)
def test_beneath_a_finding_about_lost_rows_none_says_that_no_row_is_lost(name: str) -> None:
    undone = (Undone(12, 8, (stamp(4, 9), stamp(5, 10))),)
    found = evaluate_rules(replace(ROWS[name][0], undone=undone))
    if found[0].code is Code.HEALTHY:
        return  # the epochs are of an older numbering
    assert found[0].severity is Severity.CRITICAL
    for each in found[1:]:
        assert not re.search(r"([Nn]o row|[Nn]othing) is (lost|missing)", each.cause), each.cause
        if each.steps and each.severity < Severity.CRITICAL:
            assert [step.text for step in each.steps] == [
                f"Do what {found[0].code.value} says first."
            ]


@pytest.mark.parametrize("name", ROWS)
def test_no_sentence_shows_the_number_that_stands_for_no_epoch(name: str) -> None:
    evidence = replace(ROWS[name][0], watermark=watermark(-1))
    for each in evaluate_rules(evidence):
        if each.severity is Severity.CRITICAL:
            continue
        assert not re.search(r"(?<![\w-])-1\b", f"{each.summary} {each.cause}"), each.summary


def test_a_transient_failure_is_told_from_a_terminal_one() -> None:
    ended_well = state(**RELEASED)
    ended = driver(summary=replace(FAILED, error="StorageUnavailableError"), alive=False)
    transient = only(Code.QUERY_FAILED, state=ended_well, drivers=(ended,))
    assert (transient.evidence["terminal"], transient.cause[:9]) == (False, "Transient")
    ended = driver(summary=FAILED, alive=False)
    terminal = only(Code.QUERY_FAILED, state=ended_well, drivers=(ended,))
    assert (terminal.evidence["terminal"], terminal.cause[:8]) == (True, "Terminal")
    assert terminal.summary.endswith("SchemaMismatchError: column x and more")
    assert terminal.steps[0].text == "Correct what the message names."
    ended = driver(summary=replace(FAILED, error="StreamingQueryException"), alive=False)
    unknown = only(Code.QUERY_FAILED, state=ended_well, drivers=(ended,))
    assert unknown.cause.startswith("The kind of the error does not say whether it comes again.")


def test_a_users_exception_is_told_in_full() -> None:
    said = (
        "f raised ValueError: no\nprice\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    clean(row)\n  File "b.py", line 7, in clean'
    )
    failed = replace(FAILED, error="UserFunctionError", message=said)
    ended = driver(summary=failed, alive=False)
    found = only(Code.QUERY_FAILED, state=state(**RELEASED), drivers=(ended,))
    assert found.summary.endswith("f raised ValueError: no price (at b.py:7 in clean)")
    assert found.cause.endswith(said[len("f raised ValueError: no\nprice") :])
    assert found.steps[0].text == "Correct b.py:7 in clean."
    assert found.evidence["message"] == said


def test_tolerance_moves_the_limit_of_a_finding() -> None:
    evidence = seen(checkpoint=checkpoint(6, planned_at=at(50)))
    assert evaluate_rules(evidence, Tolerance(stall=40))[0].code is Code.STALLED


def test_a_query_that_cannot_be_read_is_a_finding() -> None:
    port = InMemoryDataset().open()
    finding = unreadable_finding(port, "q", ValueError("protocol 2"))
    assert finding.code is Code.PROTOCOL_NEWER
    assert "protocol 2" in finding.summary


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize(("word", "derived"), [("owner", False), ("lastEpochTime", True)])
def test_a_wrong_value_is_put_back_unless_no_version_shows_the_right_one(
    cleaned: bool, word: str, derived: bool
) -> None:
    dataset = InMemoryDataset(config={key(word, "q"): "-7"})
    port = dataset.open().commit(Configure({"a": "b"}))
    if cleaned:
        dataset.clean_up(port.version)
    with pytest.raises(ProtocolVersionError) as caught:
        decode_query(port.config, "q", port.version)
    step = unreadable_finding(dataset.open(), "q", caught.value).steps[0]
    assert bool(step.command) is (derived or not cleaned)
    assert ("a new table" in step.text) is (cleaned and not derived)
