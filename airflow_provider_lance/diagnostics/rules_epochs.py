"""Rules about epochs: Spark's logs, the dataset's versions and its config compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.commands import command
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair, Severity
from airflow_provider_lance.diagnostics.formatting import lasted, seconds_since
from airflow_provider_lance.diagnostics.rules_driver import is_driver_running
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import OwnerState
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
    missing = list(evidence.missing_versions)
    shown: dict[str, Any] = {
        "missingVersions": missing,
        "missing": watermark.missing,
        "foldedVersion": state.folded_version,
        "version": evidence.version,
        "watermarkAtLeast": watermark.epoch,
        "planned": seen.planned if seen else None,
        "committed": seen.committed if seen else None,
    }
    span = f" ({missing[0]} to {missing[-1]})" if missing else ""
    gone = (
        f"{watermark.missing} of the versions since the last fold of query "
        f"{evidence.query_id}{span} were cleaned up"
    )
    cause = (
        "Somebody else's cleanup, or Lance's own auto-cleanup, removed versions before their "
        "epochs were folded into the config. "
    )
    if seen is None:
        return Finding(
            Code.HISTORY_GAP,
            f"{gone}, and without the checkpoint nobody can tell which epochs were in them.",
            cause=f"{cause}Run the same check where the checkpoint can be read.",
            command=command(evidence, "check"),
            evidence=shown,
            query_id=evidence.query_id,
        )
    doubt = epoch_in_doubt(seen, state, watermark)
    if doubt is None:
        proven = max(watermark.epoch, known_done(state))
        return Finding(
            Code.HISTORY_GAP,
            f"{gone}; every epoch up to {proven} is proven nevertheless, so none is in doubt.",
            cause=f"{cause}The next start folds what is proven; nothing to do.",
            evidence={**shown, "proven": proven},
            query_id=evidence.query_id,
            raised=Severity.INFO,
        )
    epoch = ("--epoch", str(doubt), "--after-version", str(state.folded_version))
    committed, absent = (
        command(evidence, "resolve", "gap", options=(*epoch, answer))
        for answer in ("--committed", "--missing")
    )
    if alive:
        return Finding(
            Code.HISTORY_GAP,
            f"{gone} under a live driver; were it to die now, whether epoch {doubt} landed could "
            "not be told.",
            cause=f"{cause}The driver knows its own epochs and goes on; its next fold closes the "
            "gap. Stop whoever cleans up.",
            command=command(evidence, "watch"),
            evidence={**shown, "inDoubt": doubt},
            query_id=evidence.query_id,
            raised=Severity.WARNING,
        )
    return Finding(
        Code.HISTORY_GAP,
        f"{gone}, and epoch {doubt} was planned: whether the rows of epochs {watermark.epoch + 1}"
        f" to {doubt} are in the dataset cannot be told.",
        cause=f"{cause}Or an older version was restored before that. Look whether the rows of "
        f"epoch {doubt} are in the dataset, and add to the command --committed if they are, "
        "--missing if they are not.",
        command=command(evidence, "resolve", "gap", options=epoch),
        evidence={**shown, "inDoubt": doubt, "ifCommitted": committed, "ifMissing": absent},
        query_id=evidence.query_id,
    )


def _behind(evidence: Evidence, tolerance: Tolerance, alive: bool | None) -> Iterator[Finding]:
    watermark, state = evidence.watermark, evidence.state
    after = [
        stamp
        for stamp in evidence.history
        if stamp.generation == state.generation
        and stamp.epoch_id > watermark.epoch
        and stamp.version > state.folded_version
    ]
    released = state.owner is not None and state.owner.state is OwnerState.RELEASED
    if released and after and not evidence.undone:
        yield _after_release(evidence, max(stamp.epoch_id for stamp in after))
    if watermark.epoch <= state.watermark:
        return
    epochs = len(watermark.stamps)
    usual = bool(alive) and epochs <= tolerance.unfolded
    if usual:
        cause = "A driver folds every few epochs and at its release; nothing to do."
    elif alive:
        cause = "The driver could not fold for long; its log says why."
    else:
        ended = "The driver ended before its next fold" if alive is False else "No driver is seen"
        cause = (
            f"{ended}. Nothing is lost while the versions are there, but a foreign cleanup may "
            "take the evidence; the next start folds it, and so does a release."
        )
    yield Finding(
        Code.WATERMARK_BEHIND,
        f"The config's watermark of query {evidence.query_id} is {state.watermark}, and history "
        f"shows epoch {watermark.epoch} in version "
        f"{max(each.version for each in watermark.stamps)}: "
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'} since the last fold.",
        cause=cause,
        command=_mend(evidence, alive, usual=usual),
        evidence={
            "configWatermark": state.watermark,
            "watermark": watermark.epoch,
            "foldedVersion": state.folded_version,
            "version": evidence.version,
            "epochs": [[stamp.epoch_id, stamp.version] for stamp in watermark.stamps[-20:]],
        },
        query_id=evidence.query_id,
        repair=None if usual else Repair.WATERMARK,
        raised=None if usual else Severity.WARNING,
    )


def _mend(evidence: Evidence, alive: bool | None, *, usual: bool) -> str:
    if usual:
        return ""
    if alive:
        return command(evidence, "status")
    return command(evidence, "release", options=() if alive is None else ("--yes",))


def _after_release(evidence: Evidence, epoch: int) -> Finding:
    return Finding(
        Code.WATERMARK_BEHIND,
        f"The owner of query {evidence.query_id} is recorded as released with watermark "
        f"{evidence.watermark.epoch}, and history shows epoch {epoch} after that.",
        cause="The owner record was changed by hand or by another tool while a driver was at work. "
        "A new driver would trust it and might append those epochs again. Do not start the stream; "
        "compare the epochs first.",
        command=command(evidence, "epochs"),
        evidence={
            "watermark": evidence.watermark.epoch,
            "epoch": epoch,
            "foldedVersion": evidence.state.folded_version,
        },
        query_id=evidence.query_id,
        raised=Severity.CRITICAL,
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
    since = f" since {seen.planned_at}" if seen.planned_at else ""
    yield Finding(
        Code.EPOCH_IN_FLIGHT,
        f"Epoch {doubt} of query {evidence.query_id} is planned{since} and not committed; the "
        f"watermark is {watermark.epoch}.",
        cause="The driver is at work on it."
        if alive
        else "No driver is at work: the next start plans the same epoch again, with the same rows."
        if alive is False
        else "Whether a driver is at work on it cannot be seen from here.",
        evidence=_epochs(evidence, seen),
        query_id=evidence.query_id,
    )


def _epochs(evidence: Evidence, seen: Checkpoint | None) -> dict[str, Any]:
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
    what = f"Epoch {epoch}" if epoch is not None else "The driver"
    how = (
        f"is planned and not committed since {since} ({lasted(waited)})"
        if epoch is not None and since and waited is not None
        else f"makes no progress: {health.reason if health else 'nothing is known of it'}"
    )
    driver = evidence.drivers[0] if evidence.drivers else None
    where = driver.where if driver else "an unknown host"
    return Finding(
        Code.STALLED,
        f"{what} of query {evidence.query_id} {how}.",
        cause="The source, Spark's tasks or the store hang, or the epoch is too large. Look at the "
        f"driver's log and the Spark UI; ask it to stop, and end its process on {where} if it does "
        "not within its grace: nothing is lost, the epoch is planned again.",
        command=command(evidence, "stop", options=("--yes",)),
        evidence={
            **_epochs(evidence, seen),
            "driver": where,
            "health": str(health) if health else None,
            "uiAddress": driver.heartbeat.ui_address if driver and driver.heartbeat else "",
        },
        query_id=evidence.query_id,
    )


def _to_skip(evidence: Evidence, seen: Checkpoint, epoch: int) -> Finding:
    stamp = next((each for each in evidence.history if each.epoch_id == epoch), None)
    where = f" in version {stamp.version}" if stamp else ""
    return Finding(
        Code.EPOCH_TO_SKIP,
        f"Epoch {epoch} of query {evidence.query_id} is committed{where} and absent from Spark's "
        f"commit log, which ends at {seen.committed}.",
        cause="The driver ended between the commit and Spark's note of it. Harmless: the next "
        "start replays the epoch and skips it.",
        evidence={**_epochs(evidence, seen), "epochVersion": stamp.version if stamp else None},
        query_id=evidence.query_id,
    )
