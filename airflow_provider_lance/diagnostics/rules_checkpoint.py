"""Rules about the checkpoint: missing, foreign, older, ahead, corrupt or changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.evidence import Contradiction, DriverSeen, Evidence
from airflow_provider_lance.diagnostics.finding_builder import checkpoint_values, command, finding
from airflow_provider_lance.diagnostics.findings import Finding
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import WAYS_OUT, Corruption
from airflow_provider_lance.protocol.model import NO_EPOCH, Owner
from airflow_provider_lance.protocol.proof import changed_ends, lost_epochs

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
    if evidence.corruption and evidence.own_checkpoint:
        yield _corrupt(evidence, evidence.corruption)
    yield from _changed(evidence)


def _unreadable(evidence: Evidence) -> Finding:
    broken = evidence.broken_checkpoint
    return finding(
        Case.CHECKPOINT_WITHOUT_ID if broken else Case.CHECKPOINT_ELSEWHERE,
        {**checkpoint_values(evidence, None), "reason": evidence.puzzle},
        command(evidence, "check"),
        reason=evidence.puzzle,
        of=evidence,
    )


def _no_trace(evidence: Evidence, seen: Checkpoint) -> Finding:
    wrote = sorted({each.summary.uri for each in evidence.drivers if each.summary})
    return finding(
        Case.NO_TRACE,
        {**checkpoint_values(evidence, seen), "driversWroteTo": wrote},
        command(evidence, "check"),
        committed=seen.committed,
        wrote=f" Its drivers wrote to {', '.join(wrote)}." if wrote else "",
        of=evidence,
    )


def _missing(evidence: Evidence, owner: Owner, seen: Checkpoint) -> Finding:
    left = " (its logs exist, its `metadata` does not)" if seen.planned > NO_EPOCH else ""
    return finding(
        Case.CHECKPOINT_MISSING,
        checkpoint_values(evidence, seen),
        command(evidence, "check", options=("--checkpoint", evidence.checkpoint_location)),
        recorded=owner.driver.checkpoint_id,
        left=left,
        of=evidence,
    )


def _foreign(evidence: Evidence, owner: Owner, seen: Checkpoint) -> Finding:
    options = ("--checkpoint", evidence.checkpoint_location)
    return finding(
        Case.CHECKPOINT_FOREIGN,
        checkpoint_values(evidence, seen),
        command(evidence, "resolve", "checkpoint", options=options),
        recorded=owner.driver.checkpoint_id,
        recorded_location=owner.driver.checkpoint_location,
        found=seen.id,
        of=evidence,
    )


def _older(evidence: Evidence, seen: Checkpoint) -> Finding:
    return finding(
        Case.CHECKPOINT_OLDER,
        checkpoint_values(evidence, seen),
        command(evidence, "epochs"),
        planned=seen.planned,
        first=seen.planned + 1,
        of=evidence,
    )


def _jump(evidence: Evidence) -> Finding | None:
    """Find a config watermark that neither the versions nor Spark's log account for."""
    seen = evidence.own_checkpoint
    said = next((each for each in evidence.contradictions if not each.said_by), None)
    if said is None or seen is None or said.epoch <= seen.committed:
        return None  # Spark's log proves epochs that were empty, or whose versions were cleaned up
    return _contradicted(evidence, Case.WATERMARK_JUMPED, said, seen)


def _lost(evidence: Evidence) -> Iterator[Finding]:
    """Yield the epochs that a driver committed and the dataset no longer has."""
    if not evidence.intact:
        shown = checkpoint_values(evidence, evidence.checkpoint)
        yield finding(Case.DATA_FILES_MISSING, shown, command(evidence, "epochs"), of=evidence)
        return
    generation = evidence.state.generation
    for undone in evidence.undone:
        lost = [each.epoch_id for each in undone.stamps if each.generation == generation]
        if lost:
            stamps = [[each.epoch_id, each.version] for each in undone.stamps]
            yield _restored(
                evidence,
                Case.RESTORED,
                (undone.version, undone.restored),
                (lost[0], lost[-1]),
                {**checkpoint_values(evidence, evidence.checkpoint), "epochs": stamps},
            )
            return
    if gone := _gone_for_good(evidence):
        yield gone
        return
    owner, watermark = evidence.state.owner, evidence.watermark
    if owner is None:
        return  # all epochs are missing, whatever a driver reported
    for said in evidence.contradictions:
        if said.said_by:
            yield _contradicted(evidence, Case.ROLLED_BACK, said, evidence.checkpoint)
            return
    shown_epochs = [each.epoch_id for each in evidence.history if each.generation == generation]
    newest = max(watermark.epoch, *shown_epochs, NO_EPOCH)
    for driver in evidence.drivers:
        heard = _heard(driver)
        if heard is None or watermark.missing or driver.token is None:
            continue
        if driver.token >= owner.token and heard > newest:
            said = Contradiction(driver.launch_id, heard, evidence.version, newest)
            yield _contradicted(evidence, Case.ROLLED_BACK, said, evidence.checkpoint)
            return


def _gone_for_good(evidence: Evidence) -> Finding | None:
    """Find epochs that a restored version removed, from what is left of history."""
    seen, watermark = evidence.own_checkpoint, evidence.watermark
    lost = lost_epochs(watermark, evidence.state, seen.committed) if seen else None
    if lost is None or watermark.undone_by is None:
        return None
    case = Case.RESTORED_AND_CLEANED if watermark.undone_missing else Case.RESTORED
    shown = {**checkpoint_values(evidence, seen), "lostEpochs": list(lost)}
    return _restored(evidence, case, watermark.undone_by, lost, shown)


def _restored(
    evidence: Evidence,
    case: Case,
    versions: tuple[int, int],
    lost: tuple[int, int],
    shown: dict[str, Any],
) -> Finding:
    """Return the finding about a version that restored an older one and removed epochs.

    :param versions: the restoring version and the restored one.
    :param lost: the first and the last epoch.
    """
    (by, restored), (first, last) = versions, lost
    return finding(
        case,
        {**shown, "restoringVersion": by, "restoredVersion": restored},
        command(evidence, "epochs"),
        by=by,
        restored=restored,
        before=by - 1,
        lost=f"epochs {first} to {last}" if last > first else f"epoch {first}",
        be="are" if last > first else "is",
        accept=f"{first}-{last}",
        of=evidence,
    )


def _heard(driver: DriverSeen) -> int | None:
    if driver.summary and driver.summary.last_epoch is not None:
        return driver.summary.last_epoch
    heartbeat = driver.heartbeat
    return heartbeat.watermark if heartbeat and heartbeat.token is not None else None


def _contradicted(
    evidence: Evidence, case: Case, said: Contradiction, seen: Checkpoint | None
) -> Finding:
    """Return the finding about an epoch that was reported as committed, and is refuted."""
    newest = f"epoch {said.found_epoch}" if said.found_epoch > NO_EPOCH else "none at all"
    if said.found_epoch > NO_EPOCH and said.found_version:
        newest += f" (version {said.found_version})"
    return finding(
        case,
        {
            **checkpoint_values(evidence, seen),
            "saidBy": said.said_by or "config",
            "saidEpoch": said.epoch,
            "saidVersion": said.version,
            "foundEpoch": said.found_epoch,
            "foundVersion": said.found_version,
        },
        command(evidence, "epochs"),
        launch=said.said_by,
        epoch=said.epoch,
        said_version=said.version,
        newest=newest,
        found=said.found_epoch,
        first=said.found_epoch + 1,
        of=evidence,
    )


def _corrupt(evidence: Evidence, found: Corruption) -> Finding:
    case = Case.CORRUPT_TO_SET_ASIDE if found.set_aside else Case.CORRUPT
    if evidence.watermark.missing:
        case = Case.CORRUPT_IN_GAP
    safe = case is Case.CORRUPT_TO_SET_ASIDE
    return finding(
        case,
        {
            **checkpoint_values(evidence, evidence.checkpoint),
            "corrupt": {each.path: each.why for each in found.files},
            "setAside": list(found.set_aside),
        },
        command(evidence, "resolve", "files") if safe else command(evidence, "epochs"),
        files=", ".join(map(str, found.files)),
        reason=found.reason,
        ways_out=WAYS_OUT,
        of=evidence,
    )


def _changed(evidence: Evidence) -> Iterator[Finding]:
    """Yield epochs whose end differs between the checkpoint and their commits."""
    seen = evidence.own_checkpoint
    changed = changed_ends(seen, evidence.state, evidence.watermark) if seen else {}
    if seen is None or not changed:
        return
    epochs = sorted(changed)
    known = all(ends.lines is not None for ends in changed.values())
    yield finding(
        Case.ENDS_CHANGED if known else Case.ENDS_CHANGED_BY_DIGEST,
        {
            **checkpoint_values(evidence, seen),
            "checkpointEnds": {str(epoch): list(seen.ends[epoch]) for epoch in epochs},
            "committedEnds": {
                str(epoch): list(changed[epoch].lines or (changed[epoch].digest,))
                for epoch in epochs
            },
        },
        command(evidence, "resolve", "files") if known else command(evidence, "epochs"),
        files=" and ".join(f"offsets/{epoch}" for epoch in epochs),
        epoch=epochs[-1],
        of=evidence,
    )
