"""Rules about epochs: Spark's logs, the dataset's versions and its config compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.catalogue_driver import END_IT
from airflow_provider_lance.diagnostics.catalogue_epochs import EpochCase, Say
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import (
    command,
    end_process,
    finding,
    restart,
    start_again,
)
from airflow_provider_lance.diagnostics.findings import Finding, Repair, Severity, Step
from airflow_provider_lance.diagnostics.formatting import lasted, seconds_since
from airflow_provider_lance.diagnostics.rules_driver import is_driver_running
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState
from airflow_provider_lance.protocol.proof import epoch_in_doubt
from airflow_provider_lance.protocol.watermark import known_done
from airflow_provider_lance.supervision.health import StreamState

__all__ = ["epoch_rules"]


def epoch_rules(evidence: Evidence, tolerance: Tolerance) -> Iterator[Finding]:
    """Yield the findings from comparing the three logs for the newest epochs; pure."""
    alive = is_driver_running(evidence, tolerance)
    if evidence.watermark.missing:
        yield _gap(evidence, alive)
    else:
        yield from _behind(evidence, tolerance, alive)
    if seen := evidence.own_checkpoint:
        yield from _against_spark(evidence, seen, tolerance, alive)
    elif alive and evidence.health and evidence.health.state is StreamState.STALLED:
        yield _stalled(evidence, None)


def _gap(evidence: Evidence, alive: bool | None) -> Finding:
    watermark, state, seen = evidence.watermark, evidence.state, evidence.own_checkpoint
    versions = list(evidence.missing_versions)
    shown: dict[str, Any] = {
        "missingVersions": versions,
        "missing": watermark.missing,
        "foldedVersion": state.folded_version,
        "version": evidence.version,
        "watermarkAtLeast": watermark.epoch,
        "planned": seen.planned if seen else None,
        "committed": seen.committed if seen else None,
    }
    gone: dict[str, Any] = {
        "missing": watermark.missing,
        "span": f" ({versions[0]} to {versions[-1]})" if versions else "",
    }
    if seen is None:
        steps = [Step(Say.CHECKPOINT_FIRST), restart(evidence)]
        # Where the checkpoint is another one, or none, that finding comes first.
        astray = evidence.checkpoint is not None or evidence.broken_checkpoint
        severity = Severity.WARNING if astray else None
        case = EpochCase.GAP_WITHOUT_CHECKPOINT
        return finding(case, shown, steps, severity=severity, **gone, of=evidence)
    doubt = epoch_in_doubt(seen, state, watermark)
    if doubt is None:
        proven = max(watermark.epoch, known_done(state))
        shown["proven"] = proven
        return finding(EpochCase.GAP_WITHOUT_DOUBT, shown, proven=proven, **gone, of=evidence)
    shown["inDoubt"] = doubt
    if alive:
        steps = _fold_by_stop(evidence)
        return finding(EpochCase.GAP_UNDER_DRIVER, shown, steps, doubt=doubt, **gone, of=evidence)
    epoch = ("--epoch", str(doubt), "--after-version", str(state.folded_version))
    for name, answer in (("ifCommitted", "--committed"), ("ifMissing", "--missing")):
        shown[name] = command(evidence, "resolve", "gap", options=(*epoch, answer, "--yes"))
    first = max(watermark.epoch, known_done(state)) + 1
    named: dict[str, Any] = {"first": first, "doubt": doubt, "before": doubt - 1}
    if doubt > seen.committed:
        steps = [Step(Say.BEFORE.format(**named))] if first < doubt else []
        steps.append(Step(Say.IS_THERE.format(**named), shown["ifCommitted"], alone=True))
        steps.append(Step(Say.IS_NOT.format(**named), shown["ifMissing"], alone=True))
    else:
        steps = [Step(Say.ARE_THERE.format(**named), shown["ifCommitted"], alone=True)]
        without = restart(evidence, f'{{"onRestore": "accept:{first}-{doubt}"}}')
        text = Say.ARE_LOST.format(**named)
        steps.append(Step(f"{text} {without.text}", without.command))
    steps.append(restart(evidence))
    return finding(
        EpochCase.GAP_IN_DOUBT,
        shown,
        steps,
        doubt=doubt,
        before=doubt - 1,
        first=watermark.epoch + 1,
        **gone,
        of=evidence,
    )


def _fold_by_stop(evidence: Evidence) -> list[Step]:
    """Return the steps that end a running driver in order: it folds what it knows."""
    typed = command(evidence, "stop", options=("--wait", "10m", "--yes"))
    return [Step(Say.STOP, typed), restart(evidence)]


def _behind(evidence: Evidence, tolerance: Tolerance, alive: bool | None) -> Iterator[Finding]:
    watermark, state = evidence.watermark, evidence.state
    after = [
        stamp.epoch_id
        for stamp in evidence.history
        if stamp.generation == state.generation
        and stamp.epoch_id > watermark.epoch
        and stamp.version > state.folded_version
    ]
    released = state.owner is not None and state.owner.state is OwnerState.RELEASED
    if released and after and not evidence.undone:
        yield finding(
            EpochCase.COMMITTED_AFTER_RELEASE,
            {
                "watermark": watermark.epoch,
                "epoch": max(after),
                "foldedVersion": state.folded_version,
            },
            [
                Step(
                    Say.OWNER_BACK,
                    command(evidence, "resolve", "config", options=("--yes",)),
                ),
                restart(evidence),
            ],
            epoch=max(after),
            of=evidence,
        )
    if watermark.epoch <= state.watermark:
        return
    epochs = len(watermark.stamps)
    usual = bool(alive) and epochs <= tolerance.unfolded
    if usual:
        case, steps = EpochCase.BEHIND_AS_USUAL, []
    elif alive:
        case, steps = EpochCase.BEHIND_UNDER_DRIVER, _fold_by_stop(evidence)
    else:
        case, steps = EpochCase.BEHIND_WITHOUT_DRIVER, [restart(evidence)]
    yield finding(
        case,
        {
            "configWatermark": state.watermark,
            "watermark": watermark.epoch,
            "foldedVersion": state.folded_version,
            "version": evidence.version,
            "epochs": [[stamp.epoch_id, stamp.version] for stamp in watermark.stamps[-20:]],
        },
        steps,
        repair=None if usual else Repair.WATERMARK,
        folded=state.watermark if state.watermark > NO_EPOCH else "none",
        epoch_version=max(each.version for each in watermark.stamps),
        epochs=f"{epochs} {'epoch' if epochs == 1 else 'epochs'}",
        ended="No driver can be seen" if alive is None else "The driver ended before its next fold",
        of=evidence,
    )


def _against_spark(
    evidence: Evidence, seen: Checkpoint, tolerance: Tolerance, alive: bool | None
) -> Iterator[Finding]:
    watermark, health = evidence.watermark, evidence.health
    stalled = alive and health is not None and health.state is StreamState.STALLED
    doubt = seen.in_flight
    if doubt is None or watermark.epoch > seen.planned:
        if stalled:
            yield _stalled(evidence, None)
        return
    if doubt <= watermark.epoch:
        if not alive:
            yield _to_skip(evidence, seen, doubt)
        elif stalled:
            yield _stalled(evidence, doubt)
        return
    waited = seconds_since(seen.planned_at, evidence.seen_at) or 0.0
    if stalled or (alive and waited >= tolerance.stall):
        yield _stalled(evidence, doubt)
        return
    if watermark.missing and not alive:
        return  # the gap's finding covers it
    case = EpochCase.IN_FLIGHT if alive else EpochCase.IN_FLIGHT_WITHOUT_DRIVER
    if alive is None:
        case = EpochCase.IN_FLIGHT_UNSEEN
    since = f" since {seen.planned_at}" if seen.planned_at else ""
    yield finding(case, _epochs(evidence), of=evidence, epoch=doubt, since=since)


def _epochs(evidence: Evidence) -> dict[str, Any]:
    seen = evidence.own_checkpoint
    return {
        "watermark": evidence.watermark.epoch,
        "committedAt": evidence.watermark.committed_at,
        "planned": seen.planned if seen else None,
        "plannedAt": seen.planned_at if seen else None,
        "committed": seen.committed if seen else None,
        "version": evidence.version,
    }


def _stalled(evidence: Evidence, epoch: int | None) -> Finding:
    seen, health = evidence.own_checkpoint, evidence.health
    since = seen.planned_at if seen else None
    waited = seconds_since(since, evidence.seen_at)
    driver = evidence.drivers[0] if evidence.drivers else None
    where = driver.where if driver else "an unknown host"
    known = epoch is not None and waited is not None
    return finding(
        EpochCase.EPOCH_STALLED if known else EpochCase.DRIVER_STALLED,
        {
            **_epochs(evidence),
            "driver": where,
            "health": str(health) if health else None,
            "uiAddress": driver.heartbeat.ui_address if driver and driver.heartbeat else "",
        },
        [
            *([end_process(driver, END_IT)] if driver else []),
            start_again(driver.launched_by if driver else "", evidence.airflow_url),
        ],
        epoch=epoch,
        since=since,
        waited=lasted(waited or 0.0),
        reason=health.reason if health else "its state is unknown",
        of=evidence,
    )


def _to_skip(evidence: Evidence, seen: Checkpoint, epoch: int) -> Finding:
    stamp = next((each for each in evidence.history if each.epoch_id == epoch), None)
    return finding(
        EpochCase.EPOCH_TO_SKIP,
        {**_epochs(evidence), "epochVersion": stamp.version if stamp else None},
        epoch=epoch,
        where=f" in version {stamp.version}" if stamp else "",
        committed=seen.committed,
        of=evidence,
    )
