"""Rules about the checkpoint: missing, foreign, older, ahead, corrupt or changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_lance.diagnostics.catalogue_checkpoint import CheckpointCase, Say
from airflow_provider_lance.diagnostics.evidence import Contradiction, Evidence
from airflow_provider_lance.diagnostics.finding_builder import (
    checkpoint_values,
    command,
    finding,
    restart,
)
from airflow_provider_lance.diagnostics.findings import Finding, Step
from airflow_provider_lance.diagnostics.steps_checkpoint import (
    corrupt_files,
    lost_checkpoint,
    no_trace,
    start_over,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import Corruption
from airflow_provider_lance.protocol.model import NO_EPOCH, EpochStamp
from airflow_provider_lance.protocol.proof import changed_ends, changed_files, lost_epochs
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["checkpoint_rules"]


def checkpoint_rules(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings from comparing dataset and checkpoint; pure."""
    owner, seen = evidence.state.owner, evidence.checkpoint
    shown = checkpoint_values(evidence)
    yield from _lost(evidence)
    if seen is None:
        if owner is not None or not evidence.state.known:
            case = CheckpointCase.CHECKPOINT_ELSEWHERE
            if evidence.broken_checkpoint:
                case = CheckpointCase.CHECKPOINT_WITHOUT_ID
            if evidence.denied_checkpoint:
                case = CheckpointCase.CHECKPOINT_DENIED
            shown["reason"] = evidence.checkpoint_problem
            steps = [Step(Say.ELSEWHERE.format(location=evidence.checkpoint_location or "it"))]
            if evidence.broken_checkpoint:
                steps = lost_checkpoint(evidence, lambda: start_over(evidence)) if owner else []
            yield finding(case, shown, steps, of=evidence, reason=evidence.checkpoint_problem)
    elif owner is None:
        if seen.committed > NO_EPOCH and not evidence.state.known:
            yield _no_trace(evidence, seen)
    elif seen.id is None:
        yield finding(
            CheckpointCase.CHECKPOINT_MISSING,
            shown,
            lost_checkpoint(evidence, lambda: start_over(evidence)),
            of=evidence,
            recorded=owner.driver.checkpoint_id,
            left=" (its logs exist, its `metadata` does not)" if seen.planned > NO_EPOCH else "",
        )
    elif seen.id != owner.driver.checkpoint_id:
        yield finding(
            CheckpointCase.CHECKPOINT_FOREIGN,
            shown,
            lost_checkpoint(evidence, lambda: start_over(evidence)),
            of=evidence,
            recorded=owner.driver.checkpoint_id,
            recorded_location=owner.driver.checkpoint_location,
            found=seen.id,
        )
    elif jumped := _jump(evidence, seen):
        yield jumped
    elif evidence.newest_epoch > seen.planned:
        case, first, done = CheckpointCase.CHECKPOINT_OLDER, seen.planned + 1, seen.committed
        steps = lost_checkpoint(
            evidence, lambda: _rewind(evidence, done, Say.ROLL_TABLE) or start_over(evidence)
        )
        newest = evidence.newest_epoch
        words: dict[str, Any] = {"planned": seen.planned, "first": first, "watermark": newest}
        yield finding(case, shown, steps, of=evidence, **words)
    if evidence.corruption and evidence.own_checkpoint:
        yield _corrupt(evidence, evidence.corruption)
    yield from _changed(evidence)


def _no_trace(evidence: Evidence, seen: Checkpoint) -> Finding:
    wrote = sorted({each.summary.uri for each in evidence.drivers if each.summary})
    return finding(
        CheckpointCase.NO_TRACE,
        {**checkpoint_values(evidence), "driversWroteTo": wrote},
        no_trace(evidence, seen.committed),
        of=evidence,
        committed=seen.committed,
        wrote=f" Its drivers wrote to {', '.join(wrote)}." if wrote else "",
    )


def _jump(evidence: Evidence, seen: Checkpoint) -> Finding | None:
    """Find a config watermark that neither the versions nor Spark's log account for."""
    said = next((each for each in evidence.contradictions if not each.said_by), None)
    if said is None or said.epoch <= seen.committed:
        return None  # Spark's log proves epochs that were empty, or whose versions were cleaned up
    return _contradicted(evidence, CheckpointCase.WATERMARK_JUMPED, said)


def _lost(evidence: Evidence) -> Iterator[Finding]:
    """Yield the epochs that a driver committed and the dataset no longer has."""
    if not evidence.intact:
        typed = command(evidence, "resolve", "rewind", options=("--intact", "--yes"))
        steps = [
            Step(Say.FILES_BACK.format(uri=evidence.uri)),
            Step(Say.INTACT, typed, alone=True),
            restart(evidence),
        ]
        shown = checkpoint_values(evidence)
        yield finding(CheckpointCase.DATA_FILES_MISSING, shown, steps, of=evidence)
        return
    generation, seen = evidence.state.generation, evidence.own_checkpoint
    for undone in evidence.undone:
        lost = [
            each
            for each in undone.stamps
            if each.generation == generation
            # Spark plans what it does not have as done again.
            and (seen is None or each.epoch_id <= seen.committed)
        ]
        if lost:
            yield _restored(
                evidence,
                CheckpointCase.RESTORED,
                (undone.version, undone.restored),
                (lost[0].epoch_id, lost[-1].epoch_id),
                lost,
                epochs=[[each.epoch_id, each.version] for each in undone.stamps],
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
            yield _contradicted(evidence, CheckpointCase.ROLLED_BACK, said)
            return
    shown_epochs = [each.epoch_id for each in evidence.history if each.generation == generation]
    newest = max(watermark.epoch, *shown_epochs, NO_EPOCH)
    for driver in evidence.drivers:
        heard = _heard(driver)
        if heard is None or watermark.missing or driver.token is None:
            continue
        if driver.token >= owner.token and heard > newest:
            said = Contradiction(driver.launch_id, heard, evidence.version, newest)
            yield _contradicted(evidence, CheckpointCase.ROLLED_BACK, said)
            return


def _gone_for_good(evidence: Evidence) -> Finding | None:
    """Find epochs that a restored version removed, from what is left of history."""
    seen, watermark = evidence.own_checkpoint, evidence.watermark
    lost = lost_epochs(watermark, evidence.state, seen.committed) if seen else None
    if lost is None or watermark.undone_by is None:
        return None
    case = (
        CheckpointCase.RESTORED_AND_CLEANED if watermark.undone_missing else CheckpointCase.RESTORED
    )
    stamps = [stamp for stamp in watermark.undone if lost[0] <= stamp.epoch_id <= lost[1]]
    return _restored(evidence, case, watermark.undone_by, lost, stamps, lostEpochs=list(lost))


def _restored(
    evidence: Evidence,
    case: CheckpointCase,
    versions: tuple[int, int],
    lost: tuple[int, int],
    stamps: Sequence[EpochStamp],
    **shown: Any,
) -> Finding:
    """Return the finding about a version that restored an older one and removed epochs.

    :param versions: the restoring version and the restored one.
    :param lost: the first and the last epoch.
    :param stamps: those of the lost epochs, as far as they are known.
    """
    (by, restored), (first, last) = versions, lost
    whole = case is CheckpointCase.RESTORED
    rows = f"{sum(stamp.rows for stamp in stamps):,} rows"
    rows = rows if whole else f"at least {rows}" if stamps else "rows that cannot be counted"
    accept = ("--accept", f"{first}-{last}", "--yes")
    steps = [
        *(_rewind(evidence, first - 1) if whole or first else []),
        Step(
            Say.ACCEPT.format(rows=rows),
            command(evidence, "resolve", "restore", options=accept),
            alone=True,
        ),
        restart(evidence),
    ]
    if whole:
        back = command(evidence, "resolve", "restore", options=("--bring-back", "--yes"))
        steps = [Step(Say.BRING_BACK, back, alone=True), *steps]
        if evidence.checkpoint and not evidence.own_checkpoint:
            steps = steps[:1]  # the other ways need the query's own checkpoint
    if evidence.state.owner is None:  # the older version has no trace to repair
        steps = no_trace(evidence, last)
    return finding(
        case,
        checkpoint_values(evidence)
        | {"restoringVersion": by, "restoredVersion": restored, **shown},
        steps,
        by=by,
        restored=restored,
        lost=f"epochs {first} to {last}" if last > first else f"epoch {first}",
        rows=rows,
        be="are" if last > first else "is",
        of=evidence,
    )


def _rewind(evidence: Evidence, epoch: int, text: str = Say.READ_AGAIN) -> list[Step]:
    """Return the step that lets Spark read again what came after an epoch, if that is possible.

    Side tables must not be ahead, Spark's logs must be there, and so must the versions of the
    epochs that the table has to give up.
    """
    later = [stamp for stamp in evidence.history if stamp.epoch_id > epoch]
    cleaned = evidence.newest_epoch > epoch and (not later or evidence.watermark.missing_above)
    unseen = evidence.cleaned_up and evidence.watermark.epoch <= epoch  # what the table holds
    if evidence.own_checkpoint is None or cleaned or unseen:
        return []
    if any(side.watermark > epoch or side.lost or side.problem for side in evidence.sides):
        return []
    typed = command(evidence, "resolve", "rewind", options=(f"--to-epoch={epoch}", "--yes"))
    after = f"epoch {epoch}" if epoch > NO_EPOCH else "the beginning"
    return [Step(text.format(epoch=after), typed, alone=True)]


def _heard(driver: DriverObservation) -> int | None:
    if driver.summary and driver.summary.last_epoch is not None:
        return driver.summary.last_epoch
    heartbeat = driver.heartbeat
    return heartbeat.watermark if heartbeat and heartbeat.token is not None else None


def _contradicted(evidence: Evidence, case: CheckpointCase, said: Contradiction) -> Finding:
    """Return the finding about an epoch that was reported as committed, and is refuted."""
    if case is CheckpointCase.WATERMARK_JUMPED:
        typed = command(evidence, "resolve", "config", options=("--yes",))
        steps = [Step(Say.RIGHT_VALUE, typed), restart(evidence)]
    else:
        copy = Say.NEWER_COPY.format(uri=evidence.uri, version=said.version)
        # Without the versions, nothing shows which rows the table has.
        cleaned = said.version <= evidence.version and not evidence.history
        again = [] if cleaned else _rewind(evidence, said.found_epoch, Say.NO_NEWER_COPY)
        steps = [Step(copy), *again, restart(evidence)]
    newest = f"epoch {said.found_epoch}" if said.found_epoch > NO_EPOCH else "none at all"
    if said.found_epoch > NO_EPOCH and said.found_version:
        newest += f" (version {said.found_version})"
    return finding(
        case,
        {
            **checkpoint_values(evidence),
            "saidBy": said.said_by or "config",
            "saidEpoch": said.epoch,
            "saidVersion": said.version,
            "foundEpoch": said.found_epoch,
            "foundVersion": said.found_version,
        },
        steps,
        launch=said.said_by,
        epoch=said.epoch,
        said_version=said.version,
        newest=newest,
        after=f"epoch {said.found_epoch}" if said.found_epoch > NO_EPOCH else "the beginning",
        first=said.found_epoch + 1,
        of=evidence,
    )


def _corrupt(evidence: Evidence, found: Corruption) -> Finding:
    case = CheckpointCase.CORRUPT_TO_SET_ASIDE if found.set_aside else CheckpointCase.CORRUPT
    if evidence.watermark.missing:
        case = CheckpointCase.CORRUPT_IN_GAP
    safe = case is CheckpointCase.CORRUPT_TO_SET_ASIDE
    first = []
    if evidence.watermark.may_lack_epochs:  # nothing is folded over a restore
        safe = safe and not evidence.watermark.undone_missing
        back = command(evidence, "resolve", "restore", options=("--bring-back", "--yes"))
        first = [Step(Say.BACK_FIRST, back, alone=True)] if safe else []
    return finding(
        case,
        {
            **checkpoint_values(evidence),
            "corrupt": {each.path: each.why for each in found.files},
            "setAside": list(found.set_aside),
        },
        [*first, *corrupt_files(evidence, safe)],
        files=", ".join(map(str, found.files)),
        reason=found.reason,
        of=evidence,
    )


def _changed(evidence: Evidence) -> Iterator[Finding]:
    """Yield what Spark's own logs say otherwise than the epochs' commits and notes."""
    seen = evidence.own_checkpoint
    if seen is None:
        return
    changed = changed_ends(seen, evidence.state, evidence.watermark)
    entries = changed_files(seen, evidence.watermark)
    known = all(each.lines is not None for each in (*changed.values(), *entries.values()))
    if changed:
        epochs = sorted(changed)
        case = CheckpointCase.ENDS_CHANGED if known else CheckpointCase.ENDS_CHANGED_BY_DIGEST
        yield finding(
            case,
            {
                **checkpoint_values(evidence),
                "checkpointEnds": {str(epoch): list(seen.ends[epoch]) for epoch in epochs},
                "committedEnds": {
                    str(epoch): list(changed[epoch].lines or (changed[epoch].digest,))
                    for epoch in epochs
                },
            },
            corrupt_files(evidence, known),
            files=" and ".join(f"offsets/{epoch}" for epoch in epochs),
            epoch=epochs[-1],
            of=evidence,
        )
    elif entries:
        case = CheckpointCase.ENTRIES_CHANGED if known else CheckpointCase.ENTRIES_CHANGED_BY_DIGEST
        yield finding(
            case,
            {
                **checkpoint_values(evidence),
                "filesRead": {
                    path: list(read.lines or (read.digest,)) for path, read in entries.items()
                },
            },
            corrupt_files(evidence, known),
            files=" and ".join(sorted(entries)),
            epoch=max(seen.changed_entries),
            of=evidence,
        )
