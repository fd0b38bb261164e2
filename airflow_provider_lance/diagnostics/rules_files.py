"""Rules about single checkpoint files: corrupt, or different from what a commit says."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_lance.diagnostics.commands import (
    NEW_GENERATION,
    command,
    shown_checkpoint,
)
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Code, Finding
from airflow_provider_lance.protocol.checkpoint_corruption import WAYS_OUT, Corruption
from airflow_provider_lance.protocol.proof import changed_ends

__all__ = ["file_rules"]


def file_rules(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about the files of the query's own checkpoint; pure."""
    if evidence.corruption and evidence.own_checkpoint:
        yield _corrupt(evidence, evidence.corruption)
    yield from _changed(evidence)


def _corrupt(evidence: Evidence, found: Corruption) -> Finding:
    files = [str(each) for each in found.files]
    gap = evidence.watermark.missing > 0
    safe = bool(found.set_aside) and not gap
    if safe:
        cause = f"They can be set aside: {found.reason}. No row is lost or appended twice by it."
        if len(found.set_aside) == 1:
            cause = f"It can be set aside: {found.reason}. No row is lost or appended twice by it."
    elif gap:
        cause = "Versions that would prove which epoch is the newest were cleaned up: answer for "
        cause += "the epoch in doubt first."
    else:
        cause = f"Nothing proves that Spark can do without: {found.reason}. {WAYS_OUT}."
    return Finding(
        Code.CHECKPOINT_CORRUPT,
        f"Spark cannot start query {evidence.query_id} from the checkpoint at "
        f"{evidence.checkpoint_location}: {', '.join(files)}.",
        cause="A crash left it so, on a store that had not kept what was written, or somebody "
        f"changed it. {cause}",
        command=command(evidence, "resolve", "files") if safe else command(evidence, "epochs"),
        evidence={
            **shown_checkpoint(evidence, evidence.checkpoint),
            "corrupt": {each.path: each.why for each in found.files},
            "setAside": list(found.set_aside),
        },
        query_id=evidence.query_id,
    )


def _changed(evidence: Evidence) -> Iterator[Finding]:
    """Yield epochs whose end differs between the checkpoint and their commits."""
    seen = evidence.own_checkpoint
    changed = changed_ends(seen, evidence.state, evidence.watermark) if seen else {}
    if seen is None or not changed:
        return
    epochs = sorted(changed)
    files = " and ".join(f"offsets/{epoch}" for epoch in epochs)
    known = all(ends.lines is not None for ends in changed.values())
    yield Finding(
        Code.CHECKPOINT_CHANGED,
        f"The checkpoint at {evidence.checkpoint_location} says in {files} that epoch "
        f"{epochs[-1]} of query {evidence.query_id} ends elsewhere than its commit in "
        f"{evidence.uri} says.",
        cause="Another driver wrote the file when it woke up, or it was edited or restored. Spark "
        "would go on behind rows that were never read, or read rows again; so a driver refuses to "
        "start. "
        + (
            "The commit has the end offsets: the file can be written again from them."
            if known
            else "The commit has only the digest of the end offsets, they are too long to be kept. "
            f"Restore the file from a copy of the checkpoint, {NEW_GENERATION}."
        ),
        command=command(evidence, "resolve", "files") if known else command(evidence, "epochs"),
        evidence={
            **shown_checkpoint(evidence, seen),
            "checkpointEnds": {str(epoch): list(seen.ends[epoch]) for epoch in epochs},
            "committedEnds": {
                str(epoch): list(changed[epoch].lines or (changed[epoch].digest,))
                for epoch in epochs
            },
        },
        query_id=evidence.query_id,
    )
