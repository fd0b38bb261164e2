"""Rules about dataset and checkpoint: the checkpoint is missing, foreign, older, or ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.commands import (
    NEW_GENERATION,
    command,
    shown_checkpoint,
)
from airflow_provider_lance.diagnostics.evidence import (
    Contradiction,
    Evidence,
    Undone,
)
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.rules_files import file_rules
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import NO_EPOCH, Owner
from airflow_provider_lance.protocol.proof import lost_epochs
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["checkpoint_rules"]


def checkpoint_rules(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings from comparing dataset and checkpoint; pure."""
    owner, seen = evidence.state.owner, evidence.checkpoint
    yield from _lost(evidence)
    if seen is None:
        if owner is not None or not evidence.state.known:
            yield _unreadable(evidence)
    elif owner is None:
        if seen.committed > NO_EPOCH and not evidence.state.known:
            yield _no_trace(evidence, seen)
    elif seen.id is None:
        yield _missing(evidence, owner, seen)
    elif seen.id != owner.driver.checkpoint_id:
        yield _foreign(evidence, owner, seen)
    elif jumped := _jump(evidence):
        yield jumped
    elif evidence.watermark.epoch > seen.planned:
        yield _older(evidence, seen)
    yield from file_rules(evidence)


def _unreadable(evidence: Evidence) -> Finding:
    broken = evidence.broken_checkpoint
    return Finding(
        Code.CHECKPOINT_UNREADABLE,
        f"The checkpoint {evidence.checkpoint_location or '(none recorded)'} cannot be read from "
        f"here: {evidence.puzzle}.",
        cause="Its `metadata` is damaged; Spark cannot start from it either. Restore it."
        if broken
        else "It lies on a store that pyarrow does not serve, or on another host's disk. Dataset "
        "and drivers were judged without it; run the same command where it can be read.",
        command=command(evidence, "check"),
        evidence={**shown_checkpoint(evidence, None), "reason": evidence.puzzle},
        query_id=evidence.query_id,
        raised=Severity.ERROR if broken else None,
    )


def _no_trace(evidence: Evidence, seen: Checkpoint) -> Finding:
    wrote = sorted({each.summary.uri for each in evidence.drivers if each.summary})
    told = f" Its drivers wrote to {', '.join(wrote)}." if wrote else ""
    return Finding(
        Code.COMMIT_LOG_AHEAD,
        f"The checkpoint at {evidence.checkpoint_location} has committed epochs up to "
        f"{seen.committed}, and {evidence.uri} at version {evidence.version} has no trace of query "
        f"{evidence.query_id}.",
        cause="The dataset was dropped, made anew or restored from before the query began, or this "
        f"is the wrong URI or query id.{told} Those epochs' rows are not here. Correct the URI, or "
        "start with a new checkpointLocation, which reads the source again.",
        command=command(evidence, "check"),
        evidence={**shown_checkpoint(evidence, seen), "driversWroteTo": wrote},
        query_id=evidence.query_id,
    )


def _missing(evidence: Evidence, owner: Owner, seen: Checkpoint) -> Finding:
    left = " (its logs are there, its `metadata` is not)" if seen.planned > NO_EPOCH else ""
    return Finding(
        Code.CHECKPOINT_MISSING,
        f"Query {evidence.query_id} has watermark {evidence.watermark.epoch} and belongs to "
        f"checkpoint {owner.driver.checkpoint_id}, but there is none at "
        f"{evidence.checkpoint_location}{left}.",
        cause="It was deleted or moved. A driver refuses to start: from an empty checkpoint every "
        "epoch up to the watermark would be skipped. Restore it from a copy, or name where it lies "
        f"now, {NEW_GENERATION}; rows read before are then appended again.",
        command=command(evidence, "check", options=("--checkpoint", evidence.checkpoint_location)),
        evidence=shown_checkpoint(evidence, seen),
        query_id=evidence.query_id,
    )


def _foreign(evidence: Evidence, owner: Owner, seen: Checkpoint) -> Finding:
    location = evidence.checkpoint_location
    return Finding(
        Code.CHECKPOINT_FOREIGN,
        f"Query {evidence.query_id} belongs to checkpoint {owner.driver.checkpoint_id} at "
        f"{owner.driver.checkpoint_location}, but {location} holds checkpoint {seen.id}.",
        cause="The checkpoint was deleted and made anew, or two queries were mixed up. A driver "
        "refuses to start: its epochs would be taken for others that are committed. Restore the "
        "recorded one; the command takes this one instead and numbers epochs anew: whatever it "
        "reads again is appended again.",
        command=command(evidence, "resolve", "checkpoint", options=("--checkpoint", location)),
        evidence=shown_checkpoint(evidence, seen),
        query_id=evidence.query_id,
    )


def _older(evidence: Evidence, seen: Checkpoint) -> Finding:
    watermark = evidence.watermark
    return Finding(
        Code.CHECKPOINT_OLDER,
        f"Epoch {watermark.epoch} of query {evidence.query_id} is in the dataset, its checkpoint "
        f"at {evidence.checkpoint_location} ends at epoch {seen.planned}.",
        cause="An older copy of the checkpoint was restored. Spark would plan epochs "
        f"{seen.planned + 1} to {watermark.epoch} again, with other rows, and the sink would skip "
        f"them; so a driver refuses to start. Restore the newest copy, {NEW_GENERATION}.",
        command=command(evidence, "epochs"),
        evidence=shown_checkpoint(evidence, seen),
        query_id=evidence.query_id,
    )


def _jump(evidence: Evidence) -> Finding | None:
    """Find a config watermark that neither the versions nor Spark's log account for."""
    seen = evidence.own_checkpoint
    said = next((each for each in evidence.contradictions if not each.said_by), None)
    if said is None or seen is None or said.epoch <= seen.committed:
        return None  # Spark's log proves epochs that were empty, or whose versions were cleaned up
    first = said.found_epoch + 1
    return Finding(
        Code.WATERMARK_JUMPED,
        f"The config says that epoch {said.epoch} of query {evidence.query_id} was committed by "
        f"version {said.version}, but the newest epoch in the versions up to there is "
        f"{_epoch(said.found_epoch, said.found_version)}.",
        cause="Somebody wrote the watermark by hand, or another tool did. Epochs "
        f"{first} to {said.epoch} would be skipped and their rows lost. Set the config key back to "
        f"{said.found_epoch} with the stream stopped, or find out who wrote it.",
        command=command(evidence, "epochs"),
        evidence={**shown_checkpoint(evidence, seen), **_contradiction(said)},
        query_id=evidence.query_id,
    )


def _lost(evidence: Evidence) -> Iterator[Finding]:
    """Yield the epochs that a driver committed and the dataset no longer has."""
    if not evidence.intact:
        yield _overwritten(evidence)
        return
    generation = evidence.state.generation
    for undone in evidence.undone:
        lost = [each.epoch_id for each in undone.stamps if each.generation == generation]
        if lost:
            yield _restored(evidence, undone, lost)
            return
    if gone := _gone_for_good(evidence):
        yield gone
        return
    owner, watermark = evidence.state.owner, evidence.watermark
    if owner is None:
        return  # all epochs are missing, whatever a driver reported
    for said in evidence.contradictions:
        if said.said_by:
            yield _rolled_back(evidence, said)
            return
    shown = [each.epoch_id for each in evidence.history if each.generation == generation]
    newest = max(watermark.epoch, *shown, NO_EPOCH)
    for driver in evidence.drivers:
        heard = _heard(driver)
        if heard is None or watermark.missing or driver.token is None:
            continue
        if driver.token >= owner.token and heard > newest:
            said = Contradiction(driver.launch_id, heard, evidence.version, newest)
            yield _rolled_back(evidence, said)
            return


def _overwritten(evidence: Evidence) -> Finding:
    return Finding(
        Code.COMMIT_LOG_AHEAD,
        f"Version {evidence.version} of {evidence.uri} names data files that are not there.",
        cause="The dataset was dropped and recreated under a driver, which kept committing until "
        f"it noticed; or somebody deleted files. Rows of query {evidence.query_id} are gone, and "
        "rows of others may be hidden. Find the versions that the query committed; restore the "
        "version before them with Lance's restore(), and start the query with a new "
        "checkpointLocation and query id, which reads the source again.",
        command=command(evidence, "epochs"),
        evidence=shown_checkpoint(evidence, evidence.checkpoint),
        query_id=evidence.query_id,
    )


def _restored(evidence: Evidence, undone: Undone, lost: list[int]) -> Finding:
    span = f"epochs {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"epoch {lost[0]}"
    return Finding(
        Code.COMMIT_LOG_AHEAD,
        f"Version {undone.version} of {evidence.uri} brought version {undone.restored} back, and "
        f"took {span} of query {evidence.query_id} with it.",
        cause="Somebody restored an older version. Spark's log has those epochs as done and does "
        "not read them again: their rows are missing. They are still in version "
        f"{undone.stamps[-1].version}: restore version {undone.version - 1} to bring them back, "
        "with the stream stopped. To go on without them, start the stream once with "
        f"onRestore=accept:{lost[0]}-{lost[-1]}; its error names both ways, too.",
        command=command(evidence, "epochs"),
        evidence={
            **shown_checkpoint(evidence, evidence.checkpoint),
            "restoringVersion": undone.version,
            "restoredVersion": undone.restored,
            "epochs": [[each.epoch_id, each.version] for each in undone.stamps],
        },
        query_id=evidence.query_id,
    )


def _gone_for_good(evidence: Evidence) -> Finding | None:
    """Find epochs that a restored version removed, from what is left of history."""
    seen, watermark = evidence.own_checkpoint, evidence.watermark
    lost = lost_epochs(watermark, evidence.state, seen.committed) if seen else None
    if lost is None or watermark.undone_by is None:
        return None
    by, restored = watermark.undone_by
    return Finding(
        Code.COMMIT_LOG_AHEAD,
        f"Version {by} of {evidence.uri} brought version {restored} back: epochs {lost[0]} to "
        f"{lost[1]} of query {evidence.query_id} are no longer in the table.",
        cause="Somebody restored an older version. Spark's log has those epochs as done and does "
        "not read them again. "
        + (
            "The versions that held them were cleaned up. To go on without them, start the stream "
            if watermark.undone_missing
            else f"Restore version {by - 1} to bring them back; or, to go on without them, start "
            "the stream "
        )
        + f"once with onRestore=accept:{lost[0]}-{lost[1]}.",
        command=command(evidence, "epochs"),
        evidence={
            **shown_checkpoint(evidence, seen),
            "restoringVersion": by,
            "restoredVersion": restored,
            "lostEpochs": list(lost),
        },
        query_id=evidence.query_id,
    )


def _heard(driver: DriverObservation) -> int | None:
    if driver.summary and driver.summary.last_epoch is not None:
        return driver.summary.last_epoch
    heartbeat = driver.heartbeat
    return heartbeat.watermark if heartbeat and heartbeat.token is not None else None


def _rolled_back(evidence: Evidence, said: Contradiction) -> Finding:
    newest = _epoch(said.found_epoch, said.found_version)
    if said.version > evidence.version:
        seen = f"{evidence.uri} is at version {evidence.version}, its newest epoch is {newest}"
    else:
        seen = f"the newest epoch there is {newest}"
    return Finding(
        Code.COMMIT_LOG_AHEAD,
        f"Launch {said.said_by} committed epoch {said.epoch} of query {evidence.query_id} by "
        f"version {said.version}, but {seen}.",
        cause="The dataset was rolled back, restored from a copy or made anew after that. Spark's "
        f"log has those epochs as done and does not read them again: rows after epoch "
        f"{said.found_epoch} are missing. Bring the newer dataset back; or start the stream with a "
        "new checkpointLocation and query id, which reads the source again.",
        command=command(evidence, "epochs"),
        evidence={**shown_checkpoint(evidence, evidence.checkpoint), **_contradiction(said)},
        query_id=evidence.query_id,
    )


def _contradiction(said: Contradiction) -> dict[str, Any]:
    return {
        "saidBy": said.said_by or "config",
        "saidEpoch": said.epoch,
        "saidVersion": said.version,
        "foundEpoch": said.found_epoch,
        "foundVersion": said.found_version,
    }


def _epoch(epoch: int, version: int) -> str:
    if epoch == NO_EPOCH:
        return "none at all"
    return f"epoch {epoch} (version {version})" if version else f"epoch {epoch}"
