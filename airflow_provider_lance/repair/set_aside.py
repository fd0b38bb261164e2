"""Repair checkpoint files where the protocol proves what is right.

Corrupt files are set aside if Spark can do without them. A file of Spark's logs that is not what
its epoch read is written again from the epoch's commit or note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Unpack

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    HistoryGapError,
    PreconditionError,
)
from airflow_provider_lance.protocol.checkpoint import (
    TOPIC_IDS,
    Checkpoint,
    OffsetLog,
    epoch_of,
    parse_offsets,
    read_checkpoint,
)
from airflow_provider_lance.protocol.checkpoint_corruption import assess, corrupt_error
from airflow_provider_lance.protocol.checkpoint_files import checksum_path
from airflow_provider_lance.protocol.files import ArrowFiles, Files, open_files
from airflow_provider_lance.protocol.model import EndOffsets
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.proof import changed_ends, changed_files
from airflow_provider_lance.protocol.watermark import known_done
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import Preconditions, RepairOptions
from airflow_provider_lance.repair.result import Action, RepairResult

__all__ = ["Rewrite", "forget_topics", "plan_rewrite", "set_files_aside"]


def set_files_aside(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Move files of a query's checkpoint into its folder `set-aside`; none is deleted.

    These are corrupt files, and files of Spark's logs that are not what their epochs read; those
    are written again from what the drivers recorded.

    The query is claimed and released first: an epoch that a paused driver planned with one of these
    files can then no longer land, whatever is planned in its place.

    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
    :raises CheckpointCorruptError: nothing proves that Spark can do without them.
    :raises CheckpointMismatchError: there is another checkpoint, or none; or the dataset does not
        have the end offsets of a changed file.
    :raises DriverAliveError: a driver is alive, or its state is unknown.
    :raises PreconditionError: the dataset does not know the query; or the checkpoint changed in the
        middle, and nothing was moved.
    :raises HistoryGapError: versions are missing, and the epoch in doubt is not answered for.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: a store refused too often. Files already moved stay moved, Spark still
        refuses to start, and the same call continues.
    """
    preconditions = Preconditions(port, query_id, options)
    port, state, owner = preconditions.port, preconditions.state, preconditions.owner
    location = checkpoint_location or owner.driver.checkpoint_location
    preconditions.refuse_live_driver(location, verb=["resolve", "files"])
    files = open_files(location, options.get("storage_options"))
    checkpoint = preconditions.checkpoint(location)
    if checkpoint.id != owner.driver.checkpoint_id:
        raise CheckpointMismatchError(
            f"query {query_id!r} in {port.uri} belongs to checkpoint {owner.driver.checkpoint_id} "
            f"at {owner.driver.checkpoint_location}, and {location} has "
            f"{f'id {checkpoint.id}' if checkpoint.id else 'no checkpoint'}. Name its present "
            "location with --checkpoint"
        )
    watermark = preconditions.watermark()
    in_doubt = checkpoint.in_flight
    if watermark.missing and in_doubt is not None and in_doubt > watermark.epoch:
        raise preconditions.gap_error(watermark, in_doubt)
    epoch = max(watermark.epoch, checkpoint.committed) if watermark.missing else watermark.epoch
    done = max(epoch, checkpoint.committed, known_done(state))
    rewrite = plan_rewrite(
        files,
        checkpoint,
        changed_ends(checkpoint, state, watermark),
        changed_files(checkpoint, watermark),
        done,
    )
    found = None if rewrite else assess(files, checkpoint, epoch)
    repaired = RepairResult(
        action=Action.FILES,
        uri=port.uri,
        query_id=query_id,
        sentence=f"every file that Spark needs of the checkpoint at {location} is whole, and says "
        "what the commits say",
        changed=False,
        version=port.version,
        watermark=state.watermark,
        token=owner.token,
        generation=state.generation,
        dry_run=preconditions.dry_run,
    )
    if found and not found.set_aside:
        raise corrupt_error(
            found,
            checkpoint,
            port.uri,
            query_id,
            known=True,
            connection_arguments=options.get("connection_arguments", ""),
        )
    folder = _folder()
    if rewrite:
        paths, checkpoint = rewrite.kept, rewrite.checkpoint
        what = f"{', '.join(rewrite.after)} written again"
        reason = "with what the drivers recorded of these epochs; the old files are kept"
        if rewrite.set_aside:
            reason += f". {', '.join(rewrite.set_aside)} set aside: not done, and planned again"
    elif found:
        paths, reason = found.set_aside, found.reason
        what = f"{', '.join(paths)} set aside"
    else:
        return repaired
    moves = {path: f"{folder}/{path}" for path in paths}
    repaired = replace(repaired, sentence=f"{what} by {preconditions.by}; {reason}", moves=moves)
    folded = replace(watermark, epoch=epoch)
    try:
        port, state, plan = force_release(
            preconditions, preconditions.driver(what), checkpoint, folded
        )
    except HistoryGapError as error:
        raise preconditions.gap_error(watermark) from error
    if plan:
        return replace(repaired, writes=tuple(plan))
    # From here on, no driver can land an epoch planned with one of these files.
    current = (
        rewrite.is_current(files)
        if rewrite
        else found
        == assess(files, read_checkpoint(location, files, with_ends=True), state.watermark)
    )
    if not current:
        raise PreconditionError(
            f"the checkpoint at {location} or the watermark of query {query_id!r} changed during "
            "the check; no file was moved. Check again before you continue"
        )
    if rewrite:
        rewrite.apply(files, folder)
    else:
        move_all(files, moves)
    token = state.owner.token if state.owner else None
    return replace(
        repaired, changed=True, version=port.version, watermark=state.watermark, token=token
    )


def forget_topics(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Set aside the ids of the topics that a query has read; the next start records new ones.

    For topics that have the same records at the same offsets under other ids.

    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
    :raises DriverAliveError: a driver is alive, or its state is unknown.
    :raises SpecError: the dataset does not know the query, or the location cannot be opened.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    preconditions = Preconditions(port, query_id, options)
    location = checkpoint_location or preconditions.owner.driver.checkpoint_location
    preconditions.refuse_live_driver(location, verb=["resolve", "topics"])
    files = open_files(location, options.get("storage_options"))
    names = [name for name in files.names(TOPIC_IDS) if not name.startswith(".")]
    folder = _folder()
    moves = {f"{TOPIC_IDS}/{name}": f"{folder}/{TOPIC_IDS}/{name}" for name in names}
    sentence = f"no ids of topics are recorded in the checkpoint at {location}"
    if names:
        sentence = (
            f"the ids of the topics that query {query_id!r} has read are set aside in the "
            f"checkpoint at {location}: the next start goes on at its offsets, whatever topics "
            "have these names then"
        )
    if names and not preconditions.dry_run:
        move_all(files, moves)
    return RepairResult(
        action=Action.TOPICS,
        uri=preconditions.port.uri,
        query_id=query_id,
        sentence=sentence,
        changed=bool(names) and not preconditions.dry_run,
        version=preconditions.port.version,
        dry_run=preconditions.dry_run,
        moves=moves,
    )


def _folder() -> str:
    """Return where files are set aside.

    A separate folder: Spark refuses to plan epoch 0 while `offsets` holds anything (seen on 4.3).
    """
    return f"set-aside/{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def move_all(files: ArrowFiles, moves: Mapping[str, str]) -> None:
    """Move the files in the given order, each with the checksum that Hadoop keeps beside it."""
    for path, to in moves.items():
        if files.read(checksum_path(path)) is not None:
            files.move(checksum_path(path), checksum_path(to))
        files.move(path, to)


_LINE_END = re.compile(b"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of Spark's logs that get the content ``after`` instead of ``before``.

    ``set_aside`` are offset files of later epochs that are not done. They may begin where the
    changed ones ended, so Spark plans them again. ``checkpoint`` is the state afterwards.
    """

    before: Mapping[str, bytes]
    after: Mapping[str, bytes]
    set_aside: tuple[str, ...]
    checkpoint: Checkpoint

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the paths of all files that are kept unchanged, newest first."""
        return (*self.set_aside, *self.after)

    def is_current(self, files: Files) -> bool:
        """Return whether the files still have the content that was read."""
        return all(files.read(path) == content for path, content in self.before.items())

    def apply(self, files: ArrowFiles, folder: str) -> None:
        """Keep the old files in a folder of the checkpoint, and put the new ones in their place.

        The file of a done epoch is never absent: the new one is written whole, then renamed.
        """
        for path in self.set_aside:
            _move_checksum(files, path, folder)
            files.move(path, f"{folder}/{path}")
        for path, content in self.after.items():
            files.write(f"{folder}/{path}", self.before[path])
            files.write(f"{folder}/new/{path}", content)
            # The checksum belongs to the old content, and Spark may compare it.
            _move_checksum(files, path, folder)
            files.move(f"{folder}/new/{path}", path)


def plan_rewrite(
    files: Files,
    checkpoint: Checkpoint,
    changed: Mapping[int, EndOffsets],
    entries: Mapping[str, EndOffsets],
    done: int,
) -> Rewrite | None:
    """Plan the changes that make a checkpoint agree with the dataset; ``None`` if it does.

    :param changed: the epochs whose files disagree, see
        :func:`~airflow_provider_lance.protocol.proof.changed_ends`.
    :param entries: the entries of file sources' logs that disagree, see
        :func:`~airflow_provider_lance.protocol.proof.changed_files`.
    :param done: the newest epoch that is in the dataset or in Spark's commit log.
    :raises CheckpointMismatchError: the dataset does not have the end offsets, or they are those of
        other sources.
    """
    if not changed and not entries:
        return None
    before = {f"offsets/{epoch}": files.read(f"offsets/{epoch}") or b"" for epoch in changed}
    after = {
        f"offsets/{epoch}": _content(checkpoint, epoch, before[f"offsets/{epoch}"], ends)
        for epoch, ends in sorted(changed.items(), reverse=True)
    }
    before |= {path: files.read(path) or b"" for path in entries}
    after |= {path: _entry(checkpoint, path, read) for path, read in sorted(entries.items())}
    epochs = sorted(each for name in files.names("offsets") if (each := epoch_of(name)) is not None)
    later = [epoch for epoch in reversed(epochs) if epoch > done]
    aside = tuple(f"offsets/{epoch}" for epoch in later)
    before |= {path: files.read(path) or b"" for path in aside}
    lines = {epoch: ends.lines for epoch, ends in changed.items() if ends.lines is not None}
    mended = replace(checkpoint, ends={**checkpoint.ends, **lines}, changed_entries={})
    return Rewrite(before, after, aside, mended)


def _content(checkpoint: Checkpoint, epoch: int, content: bytes, ends: EndOffsets) -> bytes:
    """Return a file's content with the lines of the commit; its first two lines stay unchanged."""
    if ends.lines is None:
        raise CheckpointMismatchError(
            f"offsets/{epoch} of the checkpoint at {checkpoint.location} is not what the commit of "
            f"epoch {epoch} says, and the commit has only the digest of the end offsets. Restore "
            "the file from a copy of the checkpoint, or start once with "
            "onCheckpointChange=newGeneration, which reads the source from where it stands"
        )
    head = [line.decode() for line in _LINE_END.split(content)[:2]]
    text = "\n".join([*head, *ends.lines])
    new = _parsed(text.encode())
    if new is None or new.lines != ends.lines or set(new.sources) != set(_sources(content)):
        raise CheckpointMismatchError(
            f"offsets/{epoch} of the checkpoint at {checkpoint.location} has "
            f"{len(_sources(content))} sources ({', '.join(_sources(content)) or 'none'}), and the "
            f"commit of epoch {epoch} has the end offsets {list(ends.lines)}: they do not fit. "
            "Restore the file from a copy of the checkpoint"
        )
    return text.encode()


def _entry(checkpoint: Checkpoint, path: str, read: EndOffsets) -> bytes:
    """Return the content of an entry of a file source's log."""
    if read.lines is None:
        raise CheckpointMismatchError(
            f"{path} of the checkpoint at {checkpoint.location} does not list the files that its "
            "epoch read, and their list is too long to be kept, or Spark has compacted the entry. "
            "Restore the file from a copy of the checkpoint, or start again with an empty one: "
            "lance-stream check prints the command"
        )
    return "\n".join(["v1", *read.lines]).encode()


def _parsed(content: bytes) -> OffsetLog | None:
    try:
        return parse_offsets(content)
    except ValueError:
        return None


def _sources(content: bytes) -> tuple[str, ...]:
    log = _parsed(content)
    return tuple(log.sources) if log else ()


def _move_checksum(files: ArrowFiles, path: str, folder: str) -> None:
    if files.read(checksum_path(path)) is not None:
        files.move(checksum_path(path), f"{folder}/{checksum_path(path)}")
