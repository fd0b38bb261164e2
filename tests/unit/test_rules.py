"""The table of findings: each row is what was seen, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from airflow_provider_lance import diagnostics
from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.evidence import Contradiction, Evidence, Tolerance, Undone
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.diagnostics.side_tables import SideTableStatus
from airflow_provider_lance.protocol.checkpoint_corruption import Corruption
from airflow_provider_lance.protocol.checkpoint_files import CorruptFile
from airflow_provider_lance.protocol.model import (
    DoneEpoch,
    EndOffsets,
    EpochStamp,
    OwnerState,
    QueryState,
    StopNote,
)
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.health import Health, StreamState
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from tests.support.advice import refuse_bad_advice
from tests.support.recovery_evidence import (
    CRITICAL,
    ELSEWHERE,
    ERROR,
    FAILED,
    GONE,
    INFO,
    OTHER,
    RELEASED,
    WARNING,
    at,
    checkpoint,
    driver,
    owner,
    seen,
    stamp,
    state,
    summary,
    watermark,
)


def checked(epoch: int, checks: RowChecks) -> EpochStamp:
    """Return an epoch of which 10 rows landed."""
    return replace(stamp(epoch, 6 + epoch), checks=checks)


MISSED = checked(4, RowChecks({"small": Met(0, 10)}))

Row = tuple[Evidence, list[tuple[Code, Severity]]]

ROWS: dict[str, Row] = {
    "well": (seen(), []),
    "no trace, and nothing to compare with": (
        seen(
            state=QueryState("q", 12), watermark=watermark(-1),
            checkpoint=checkpoint(-1, -1, id=None), drivers=(), history=(), health=None,
        ),
        [],
    ),
    # ------------------------------------------------------------------------------------- epochs
    "in flight": (
        seen(checkpoint=checkpoint(6, planned_at=at(5))),
        [(Code.EPOCH_IN_FLIGHT, INFO)],
    ),
    "in flight for too long": (
        seen(checkpoint=checkpoint(6, planned_at=at(700))),
        [(Code.STALLED, ERROR)],
    ),
    "the driver does not respond": (
        seen(health=Health(StreamState.NOT_RESPONDING, "no heartbeat for 50 s")),
        [(Code.NOT_RESPONDING, ERROR)],
    ),
    "the driver hangs": (
        seen(health=Health(StreamState.STALLED, "hangs")),
        [(Code.STALLED, ERROR)],
    ),
    "the driver hangs, and nobody can read the checkpoint": (
        seen(
            health=Health(StreamState.STALLED, "hangs"),
            checkpoint=None,
            checkpoint_problem="no such store",
        ),
        [(Code.STALLED, ERROR), (Code.CHECKPOINT_UNREADABLE, WARNING)],
    ),
    "planned, and nobody at work": (
        seen(state=state(**RELEASED), drivers=(GONE,), checkpoint=checkpoint(6)),
        [(Code.EPOCH_IN_FLIGHT, INFO)],
    ),
    "between the commit and Spark's note of it": (seen(checkpoint=checkpoint(5, 4)), []),
    "committed and not noted by Spark": (
        seen(state=state(**RELEASED), drivers=(GONE,), checkpoint=checkpoint(5, 4)),
        [(Code.EPOCH_TO_SKIP, INFO)],
    ),
    "behind as usual": (
        seen(state=state(4), watermark=watermark(5, stamp(5, 11))),
        [(Code.WATERMARK_BEHIND, INFO)],
    ),
    "behind for long": (
        seen(state=state(-1), watermark=watermark(5, *(stamp(5, 11) for _ in range(101)))),
        [(Code.WATERMARK_BEHIND, WARNING)],
    ),
    "behind, and nobody at work": (
        seen(state=state(4), watermark=watermark(5, stamp(5, 11)), drivers=(GONE,)),
        [(Code.DRIVER_GONE, ERROR), (Code.WATERMARK_BEHIND, WARNING)],
    ),
    "committed after the release": (
        seen(state=state(4, **RELEASED), watermark=watermark(4), history=(stamp(5, 11),)),
        [(Code.WATERMARK_BEHIND, CRITICAL)],
    ),
    "a gap with an epoch in doubt": (
        seen(
            watermark=watermark(missing=2, missing_above=2),
            missing_versions=(11, 12),
            checkpoint=checkpoint(6),
            drivers=(GONE,),
        ),
        [(Code.HISTORY_GAP, ERROR), (Code.DRIVER_GONE, ERROR)],
    ),
    "a gap with an epoch in doubt under a live driver": (
        seen(
            watermark=watermark(missing=1, missing_above=1),
            missing_versions=(11,),
            checkpoint=checkpoint(6),
        ),
        [(Code.HISTORY_GAP, WARNING), (Code.EPOCH_IN_FLIGHT, INFO)],
    ),
    "a gap that Spark's log bridges": (
        seen(watermark=watermark(4, missing=1, missing_above=1), missing_versions=(11,)),
        [(Code.HISTORY_GAP, INFO)],
    ),
    "a gap and no checkpoint": (
        seen(
            watermark=watermark(missing=1, missing_above=1),
            missing_versions=(11,),
            checkpoint=None,
            checkpoint_problem="away",
        ),
        [(Code.HISTORY_GAP, ERROR), (Code.CHECKPOINT_UNREADABLE, WARNING)],
    ),
    # --------------------------------------------------------------------------------- checkpoint
    "missing": (
        seen(checkpoint=checkpoint(-1, -1, id=None)),
        [(Code.CHECKPOINT_MISSING, ERROR)],
    ),
    "foreign": (seen(checkpoint=checkpoint(id="cp-2")), [(Code.CHECKPOINT_FOREIGN, ERROR)]),
    "older": (seen(checkpoint=checkpoint(3, 3)), [(Code.CHECKPOINT_OLDER, CRITICAL)]),
    "out of sight": (
        seen(checkpoint=None, checkpoint_problem="no filesystem"),
        [(Code.CHECKPOINT_UNREADABLE, WARNING)],
    ),
    "broken": (
        seen(checkpoint=None, checkpoint_problem="no id", broken_checkpoint=True),
        [(Code.CHECKPOINT_UNREADABLE, ERROR)],
    ),
    "a file of it is corrupt": (
        seen(
            drivers=(GONE,),
            state=state(**RELEASED),
            corruption=Corruption(
                (CorruptFile("commits/5", "it is empty"),), ("commits/5",), "epoch 5 is done"
            ),
        ),
        [(Code.CHECKPOINT_CORRUPT, ERROR)],
    ),
    "it says another end than the commit": (
        seen(
            state=state(**RELEASED, done=DoneEpoch(5, EndOffsets.of(['{"logOffset":5}']))),
            checkpoint=checkpoint(ends={5: ('{"logOffset":6}',)}),
        ),
        [(Code.CHECKPOINT_CHANGED, CRITICAL)],
    ),
    "it says another end than a commit that kept a digest": (
        seen(
            state=state(**RELEASED, done=DoneEpoch(5, EndOffsets("0" * 64))),
            checkpoint=checkpoint(ends={5: ('{"logOffset":6}',)}),
        ),
        [(Code.CHECKPOINT_CHANGED, CRITICAL)],
    ),
    "a checkpoint that committed, and no trace in the dataset": (
        seen(
            state=QueryState("q", 12), watermark=watermark(-1), drivers=(), history=(), health=None
        ),
        [(Code.COMMIT_LOG_AHEAD, CRITICAL)],
    ),
    "empty epochs leave no trace": (seen(checkpoint=checkpoint(9, 9)), []),
    # ----------------------------------------------------------------- what somebody said, refuted
    "a driver saw a newer version": (
        seen(contradictions=(Contradiction("L1", 9, 20, 5, 10),), checkpoint=checkpoint(9, 9)),
        [(Code.COMMIT_LOG_AHEAD, CRITICAL)],
    ),
    "the owner knows of a higher watermark": (
        seen(drivers=(driver(heartbeat=Heartbeat(at(3), "running", token=1, watermark=7)),)),
        [(Code.COMMIT_LOG_AHEAD, CRITICAL)],
    ),
    "an earlier owner knows of a higher one, of an older numbering": (
        seen(
            state=state(owner=replace(owner(), token=2, generation=1)),
            drivers=(
                driver(token=2),
                driver("L0", process=OTHER, alive=False,
                       heartbeat=Heartbeat(at(900), "running", token=1, watermark=70), token=1),
            ),
        ),
        [],
    ),
    "its data files are gone": (seen(intact=False), [(Code.COMMIT_LOG_AHEAD, CRITICAL)]),
    "a version was brought back over epochs": (
        seen(undone=(Undone(12, 8, (stamp(4, 9), stamp(5, 10))),)),
        [(Code.COMMIT_LOG_AHEAD, CRITICAL)],
    ),
    "a version was brought back, in which the query was released": (
        seen(
            state=state(3, folded_version=8, **RELEASED), watermark=watermark(3), drivers=(),
            undone=(Undone(12, 8, (stamp(4, 9), stamp(5, 10))),),
        ),
        [(Code.COMMIT_LOG_AHEAD, CRITICAL)],
    ),
    "the owner knows of a higher watermark, and versions are missing": (
        seen(
            drivers=(driver(heartbeat=Heartbeat(at(3), "running", token=1, watermark=7)),),
            watermark=watermark(missing=1, missing_above=1),
            missing_versions=(11,),
            checkpoint=checkpoint(7, 7),
        ),
        [(Code.HISTORY_GAP, WARNING)],
    ),
    "an older copy of the checkpoint, by its driver's report, and versions are missing": (
        seen(
            drivers=(driver(heartbeat=Heartbeat(at(3), "running", token=1, watermark=7)),),
            watermark=watermark(missing=1, missing_above=1),
            missing_versions=(11,),
        ),
        [(Code.CHECKPOINT_OLDER, CRITICAL), (Code.HISTORY_GAP, INFO)],
    ),
    "a version was brought back over epochs of an older numbering": (
        seen(undone=(Undone(12, 8, (stamp(4, 9, generation=-1),)),)),
        [],
    ),
    "the watermark jumped": (
        seen(
            state=state(99), watermark=watermark(99),
            contradictions=(Contradiction("", 99, 10, 5, 10),),
        ),
        [(Code.WATERMARK_JUMPED, CRITICAL)],
    ),
    "the watermark is ahead of the stamps, and Spark proves it": (
        seen(
            state=state(7), watermark=watermark(7), checkpoint=checkpoint(7, 7),
            contradictions=(Contradiction("", 7, 10, 5, 10),),
        ),
        [],
    ),
    # ------------------------------------------------------------------------------------- drivers
    "gone": (
        seen(drivers=(GONE,), health=Health(StreamState.DEAD, "gone")),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    "ended without a release": (
        seen(drivers=(driver(alive=True, summary=summary(EndReason.STOPPED, released=False)),)),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    "said that it ended, and its process has not": (
        seen(drivers=(driver(heartbeat=Heartbeat(at(3), "ended", token=None)),)),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    "silent, and out of sight": (
        seen(
            drivers=(driver(alive=None, silent=300.0),), watermark=watermark(committed_at=at(400))
        ),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    "gone, and the next is there": (
        seen(drivers=(driver("L2", process=OTHER, token=None), GONE)),
        [(Code.DRIVER_GONE, INFO)],
    ),
    "two": (
        seen(drivers=(driver("L2", process=OTHER, token=None), driver())),
        [(Code.TWO_DRIVERS, ERROR)],
    ),
    "two by their heartbeats": (
        seen(
            drivers=(
                driver("L2", process=OTHER, alive=None, token=None),
                driver(alive=None),
            )
        ),
        [(Code.TWO_DRIVERS, ERROR)],
    ),
    "two launches of one process": (seen(drivers=(driver("L2", token=None), driver())), []),
    "the last has ended": (
        seen(drivers=(driver("L2", process=OTHER), driver(summary=summary()))),
        [(Code.DRIVER_GONE, INFO)],
    ),
    "unseen, and at work": (
        seen(drivers=(ELSEWHERE,), health=Health(StreamState.RUNNING, "unseen")),
        [(Code.DRIVER_UNSEEN, INFO)],
    ),
    "unseen, and nothing comes": (
        seen(drivers=(ELSEWHERE,), watermark=watermark(committed_at=at(900)), health=None),
        [(Code.DRIVER_UNSEEN, WARNING)],
    ),
    "failed, because the topic is another one": (
        seen(
            state=state(**RELEASED), health=Health(StreamState.FAILED, "x"),
            drivers=(driver(summary=replace(FAILED, error="SourceReplacedError"), alive=False),),
        ),
        [(Code.TOPIC_REPLACED, ERROR)],
    ),
    "failed": (
        seen(
            state=state(**RELEASED), health=Health(StreamState.FAILED, "x"),
            drivers=(driver(summary=FAILED, alive=False),),
        ),
        [(Code.QUERY_FAILED, ERROR)],
    ),
    "failed, and somebody has seen to it since": (
        seen(
            state=state(owner=replace(owner(OwnerState.RELEASED), time=at(1))),
            health=Health(StreamState.STOPPED, "released"),
            drivers=(driver(summary=FAILED, alive=False),),
        ),
        [],
    ),
    "fenced by another that goes on": (
        seen(
            drivers=(
                driver("L2", process=OTHER, alive=False, token=None,
                       summary=replace(FAILED, launch_id="L2", error="FencedError")),
                driver(),
            ),
        ),
        [],
    ),
    "died before it owned anything": (
        seen(
            state=state(**RELEASED), health=Health(StreamState.DEAD, "gone"),
            drivers=(driver("L2", process=OTHER, alive=False, token=None), GONE),
        ),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    "asked to stop for long": (
        seen(state=state(stop_token=1, stop_note=StopNote(1, by="ann", time=at(90)))),
        [(Code.STOP_PENDING, WARNING)],
    ),
    "asked to stop just now": (
        seen(state=state(stop_token=1, stop_note=StopNote(1, by="ann", time=at(5)))),
        [(Code.STOP_PENDING, INFO)],
    ),
    "asked to stop before it owns anything": (
        seen(
            state=state(stop_token=2, stop_note=StopNote(2, "L2", time=at(90)), **RELEASED),
            drivers=(driver("L2", process=OTHER, token=None), driver(summary=summary())),
        ),
        [(Code.STOP_PENDING, WARNING)],
    ),
    "an old request for a driver that is no more": (
        seen(
            state=state(stop_token=1, stop_note=StopNote(1, time=at(900))), drivers=(GONE,),
        ),
        [(Code.DRIVER_GONE, ERROR)],
    ),
    # --------------------------------------------------------------------------------- side tables
    "side tables ahead and behind": (
        seen(
            sides=(
                SideTableStatus("a", "/a.lance", 6, 9),
                SideTableStatus("b", "/b.lance", 1, 3),
            )
        ),
        [],
    ),
    "side tables lost and unreadable": (
        seen(
            sides=(
                SideTableStatus("a", "/a.lance", lost="there is no dataset"),
                SideTableStatus("b", "/b.lance", problem="the store did not answer"),
            )
        ),
        [(Code.SIDE_TABLE_LOST, CRITICAL), (Code.SIDE_TABLE_UNREADABLE, WARNING)],
    ),
    # ---------------------------------------------------------------------------------------- rows
    "an expectation is missed by one row in twenty": (
        seen(history=(checked(5, RowChecks({"small": Met(95, 5)}, dropped=5)),)), [],
    ),
    "an expectation is missed by more": (
        seen(history=(
            checked(5, RowChecks({"small": Met(4, 6)})),
            checked(4, RowChecks({"small": Met(90, 0)})),
        )),
        [(Code.EXPECTATION_UNMET, WARNING)],
    ),
    "the sink refuses many rows": (
        seen(history=(checked(5, RowChecks(quarantined=2)),)), [(Code.EXPECTATION_UNMET, WARNING)],
    ),
    "rows miss an expectation in an older generation": (
        seen(history=(stamp(5, 11), replace(MISSED, generation=7))), [],
    ),
    "offsets of the source were gone": (
        seen(history=(checked(5, RowChecks(lost=5)), stamp(4, 10))),
        [(Code.SOURCE_LOST, CRITICAL)],
    ),
    # ------------------------------------------------------------------------------------ protocol
    "another tool's": (
        seen(
            state=QueryState("q", 12, watermark=5), checkpoint=None,
            checkpoint_problem="not recorded", drivers=(), health=None,
        ),
        [(Code.PROTOCOL_NEWER, ERROR)],
    ),
}  # fmt: skip


def test_rows_that_miss_an_expectation_are_counted_over_the_newest_epochs() -> None:
    history = (
        checked(5, RowChecks({"a": Met(8, 2), "b": Met(1, 9)}, quarantined=2)),
        checked(4, RowChecks({"a": Met(8, 2), "b": Met(2, 8)}, dropped=1)),
    )
    found = evaluate_rules(seen(history=history))[0]
    assert found.summary == (
        "Rows of query q do not meet its expectations in epochs 4 to 5: b by 17 of 20, a by 4 of "
        "20."
    )
    assert found.command.startswith("lance-stream quarantine ")
    assert evaluate_rules(seen(history=history), Tolerance(unmet=0.9))[0].code is Code.HEALTHY


@pytest.mark.parametrize("name", ROWS)
def test_each_evidence_has_its_findings(name: str) -> None:
    evidence, expected = ROWS[name]
    found = evaluate_rules(evidence)
    told = [(each.code, each.severity) for each in found if each.code is not Code.HEALTHY]
    assert told == expected, [each.summary for each in found]
    healthy = all(severity < Severity.WARNING for _, severity in expected)
    assert (found[0].code is Code.HEALTHY) is healthy


@pytest.mark.parametrize("name", ROWS)
def test_each_finding_says_all_that_an_on_call_engineer_needs(name: str) -> None:
    for each in evaluate_rules(ROWS[name][0]):
        assert each.query_id == "q"
        assert each.evidence or each.code is Code.HEALTHY
        assert each.summary.rstrip().endswith((".", "!")) or each.code is Code.QUERY_FAILED
        refuse_bad_advice(each)
        assert "None" not in f"{each.summary} {each.cause} {each.command}"
        assert each.severity < Severity.WARNING or (each.cause and each.steps)
        each.to_json()


def test_every_code_of_a_stream_has_a_row() -> None:
    told = {code for _, expected in ROWS.values() for code, _ in expected}
    whole = {code for code in Code if code.value.startswith(("LS4", "LS6"))} | {Code.HEALTHY}
    assert told == set(Code) - whole


def test_every_code_has_a_case_and_every_case_a_rule_in_the_module_beside_it() -> None:
    codes = set[Code]()
    for path in Path(diagnostics.__path__[0]).glob("rules*.py"):
        beside = f"{diagnostics.__name__}.{path.stem.replace('rules', 'catalogue')}"
        import_module(beside)
        topics = [topic for topic in Case.__subclasses__() if topic.__module__ == beside]
        cases = {str(case): case for topic in topics for case in topic}
        assert set(re.findall(r"\b\w*Case\.[A-Z_]+", path.read_text())) == set(cases)
        codes |= {case.code for case in cases.values()}
    assert codes == set(Code)
