"""Write `offsets/N` of a checkpoint again, with the end offsets that epoch N's commit has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_lance.exceptions import CheckpointMismatchError
from airflow_provider_lance.protocol.checkpoint import (
    Checkpoint,
    OffsetLog,
    epoch_of,
    parse_offsets,
)
from airflow_provider_lance.protocol.checkpoint_files import checksum_path
from airflow_provider_lance.protocol.files import ArrowFiles, Files
from airflow_provider_lance.protocol.model import EndOffsets

__all__ = ["Rewrite", "plan_rewrite"]

_LINE_END = re.compile(b"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Offset files that get the content ``after`` in place of ``before``.

    ``set_aside`` are offset files of later epochs that are not done. They may begin where the
    changed ones ended, so Spark plans them again. ``checkpoint`` is what is there afterwards.
    """

    before: Mapping[str, bytes]
    after: Mapping[str, bytes]
    set_aside: tuple[str, ...]
    checkpoint: Checkpoint

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the paths of all files that are kept as they were, newest first."""
        return (*self.set_aside, *self.after)

    def is_current(self, files: Files) -> bool:
        """Tell whether the files are still those that were looked at."""
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
            # It belongs to the old content, and Spark may compare.
            _move_checksum(files, path, folder)
            files.move(f"{folder}/new/{path}", path)


def plan_rewrite(
    files: Files, checkpoint: Checkpoint, changed: Mapping[int, EndOffsets], done: int
) -> Rewrite | None:
    """Plan what makes a checkpoint agree with the dataset; ``None`` if it does.

    :param changed: the epochs whose files disagree, see :func:`~.proof.changed_ends`.
    :param done: the newest epoch that is in the dataset or in Spark's commit log.
    :raises CheckpointMismatchError: the dataset does not have the end offsets, or they are those
        of other sources.
    """
    if not changed:
        return None
    before = {f"offsets/{epoch}": files.read(f"offsets/{epoch}") or b"" for epoch in changed}
    after = {
        f"offsets/{epoch}": _content(checkpoint, epoch, before[f"offsets/{epoch}"], ends)
        for epoch, ends in sorted(changed.items(), reverse=True)
    }
    epochs = sorted(each for name in files.names("offsets") if (each := epoch_of(name)) is not None)
    later = [epoch for epoch in reversed(epochs) if epoch > done]
    aside = tuple(f"offsets/{epoch}" for epoch in later)
    before |= {path: files.read(path) or b"" for path in aside}
    lines = {epoch: ends.lines for epoch, ends in changed.items() if ends.lines is not None}
    return Rewrite(before, after, aside, replace(checkpoint, ends={**checkpoint.ends, **lines}))


def _content(checkpoint: Checkpoint, epoch: int, content: bytes, ends: EndOffsets) -> bytes:
    """Return a file's content with the lines of the commit, its first two lines as they are."""
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
