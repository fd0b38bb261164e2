"""Spark's checkpoint, read without Spark: its id, the planned epochs and the epochs done.

Format seen on Spark 3.5 to 4.3: `metadata` holds ``{"id": …}``. `offsets/N` is written when epoch N
is planned, `commits/N` after the sink's commit; the newest 100 of each are kept. `offsets/N` has a
line with its version, a line of JSON whose ``batchTimestampMs`` is the start of the trigger that
planned N, and one line per source: where epoch N ends in it, ``-`` for a source that has no offset
yet. In version 1 the order of the lines identifies the sources. In version 2 (named sources, Spark
4.3) each line begins with the source's name and a colon, in any order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    ChecksumMismatchError,
    LanceStreamError,
)
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import NO_EPOCH, EndOffsets
from airflow_provider_lance.protocol.offset_notes import (
    OffsetNote,
    OffsetNotes,
    changed_entries,
    local_folder,
)

__all__ = [
    "TOPIC_IDS",
    "VOID_OFFSET",
    "Checkpoint",
    "OffsetLog",
    "epoch_of",
    "parse_offsets",
    "read_checkpoint",
    "read_offset_log",
    "read_offsets",
    "require_json",
]

TOPIC_IDS = "lance-topics"
"""The folder of this package in a checkpoint, with the ids of the topics that were read."""

VOID_OFFSET = "-"
"""What Spark writes for a source that has no offset yet."""

_NAME = re.compile("0|[1-9][0-9]{0,18}")
_LARGEST = 2**63 - 1
"""Spark's epochs are Java longs."""
_VERSIONS = ("v1", "v2")
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One read of a checkpoint; ``id`` is ``None`` until Spark has created it.

    ``planned_at`` is when the epoch in flight was planned, ISO 8601 in UTC; ``None`` when no epoch
    is in flight, or when its file does not say. ``ends`` holds the end offsets of the newest two
    planned epochs, from which Spark continues, where they were read, and ``notes`` what the drivers
    noted of these. ``changed_entries`` is known after :meth:`with_changed_entries` only.
    """

    location: str
    id: str | None = None
    planned: int = NO_EPOCH
    committed: int = NO_EPOCH
    planned_at: str | None = None
    ends: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[int, OffsetNote] = field(default_factory=dict)
    changed_entries: Mapping[int, Mapping[str, EndOffsets]] = field(default_factory=dict)

    @property
    def in_flight(self) -> int | None:
        """Return the epoch that is planned and not known to be done: the only one in doubt."""
        return self.planned if self.planned > self.committed else None

    def with_changed_entries(self) -> Checkpoint:
        """Return this with the entries of file sources' logs that are not what the epochs read.

        Reads the notes, at most 100, and these logs; on a local disk only, where notes are.

        :raises StorageUnavailableError: a file cannot be read.
        """
        folder = local_folder(self.location)
        found = changed_entries(OffsetNotes(folder)) if folder else {}
        return replace(self, changed_entries=found)


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """Where an epoch ends in each source, by the name of the source's folder in `sources`.

    That is the source's own name if it has one (``named``), otherwise its position, counted from 0.
    """

    sources: Mapping[str, str]
    named: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the lines of the file; two files that mean the same have equal lines."""
        if not self.named:
            return tuple(self.sources.values())
        return tuple(f"{name}:{offset}" for name, offset in sorted(self.sources.items()))


def read_checkpoint(location: str, files: Files, *, with_ends: bool = False) -> Checkpoint:
    """Read a checkpoint's state: two lists and a small read; one more with an epoch in flight.

    :param with_ends: read the end offsets and notes of the newest two planned epochs too, two small
        reads; two more on a local disk.

    :raises CheckpointCorruptError: `metadata` is there and no id can be read from it.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    # `commits` is read before `offsets`: a live query can only make `planned` look newer, which
    # leaves an epoch in doubt; the other order could make one look done that is not.
    committed = _newest(files, "commits")
    planned = _newest(files, "offsets")
    planned_at = _planned_at(files, planned) if planned > committed else None
    newest = (planned, planned - 1) if with_ends else ()
    ends = {epoch: lines for epoch in newest if (lines := _ends(files, epoch))}
    notes = _notes(location, newest)
    identity = _identity(location, files)
    return Checkpoint(location, identity, planned, committed, planned_at, ends, notes)


def _notes(location: str, epochs: tuple[int, ...]) -> dict[int, OffsetNote]:
    folder = local_folder(location)
    if folder is None:
        return {}
    notes = OffsetNotes(folder)
    return {epoch: note for epoch in epochs if (note := notes.read(epoch)) is not None}


def _ends(files: Files, epoch_id: int) -> tuple[str, ...] | None:
    """Read where an epoch ends; :mod:`.checkpoint_corruption` reports a file that is incomplete."""
    try:
        return read_offsets(files, epoch_id) if epoch_id > NO_EPOCH else None
    except (CheckpointCorruptError, ChecksumMismatchError):
        return None


def _identity(location: str, files: Files) -> str | None:
    content = files.read("metadata")
    if content is None:
        return None
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointCorruptError(
            f"the checkpoint at {location} has a `metadata` file without a readable id "
            f"({type(error).__name__}: {error}); restore the file, or start a new checkpoint with "
            "a new queryId"
        ) from error


def _newest(files: Files, folder: str) -> int:
    epochs = (epoch_of(name) for name in files.names(folder))
    return max((epoch for epoch in epochs if epoch is not None), default=NO_EPOCH)


def epoch_of(name: str) -> int | None:
    """Return the epoch of a file in `offsets` or `commits`, ``None`` for any other name.

    Spark leaves names such as `.5.crc`, `.6.uuid.tmp` and `9.compact` beside the numbers, and other
    tools may leave any name.
    """
    epoch = int(name) if _NAME.fullmatch(name) else _LARGEST + 1
    return epoch if epoch <= _LARGEST else None


def _planned_at(files: Files, epoch_id: int) -> str | None:
    """Read when an epoch was planned; ``None`` if unreadable, since no decision depends on it."""
    try:
        _, meta, *_ = (files.read(f"offsets/{epoch_id}") or b"").split(b"\n")
        moment = datetime.fromtimestamp(json.loads(meta)["batchTimestampMs"] / 1000, UTC)
    except (LanceStreamError, ValueError, KeyError, TypeError, ArithmeticError, OSError):
        return None
    except RecursionError:  # deeply nested JSON
        return None
    return moment.isoformat(timespec="milliseconds")


def read_offsets(files: Files, epoch_id: int) -> tuple[str, ...] | None:
    """Return where an epoch ends, one text per source; ``None`` if Spark has no such file.

    The texts are those of `offsets/N`. In version 2 they begin with the source's name and are
    sorted, so two files that mean the same give equal texts.

    :raises CheckpointCorruptError: the file is incomplete, and Spark cannot read it either.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    log = read_offset_log(files, epoch_id)
    return None if log is None else log.lines


def read_offset_log(files: Files, epoch_id: int) -> OffsetLog | None:
    """Return where an epoch ends in each source; see :func:`read_offsets`."""
    path = f"offsets/{epoch_id}"
    content = files.read(path)
    if content is None:
        return None
    try:
        return parse_offsets(content)
    except ValueError as error:
        raise CheckpointCorruptError(
            f"{path} of the checkpoint is incomplete: {error}. Spark cannot start a stream from "
            "it. `lance-stream check` says what is safe to do"
        ) from error


def parse_offsets(content: bytes) -> OffsetLog:
    """Read an offset file.

    :raises ValueError: it is not an offset file, or is incomplete; the message says why.
    """
    if not content:
        raise ValueError("it is empty")
    # UnicodeDecodeError is a ValueError. Split on Spark's line ends only: JSON may contain others.
    version, *rest = _LINE_END.split(content.decode().removesuffix("\n"))
    if version not in _VERSIONS:
        raise ValueError(f"its first line is {version[:20]!r}, not one of {', '.join(_VERSIONS)}")
    meta, *lines = rest or [""]
    if not lines:
        raise ValueError("it ends before the offset of the first source")
    if meta.strip():
        require_json(meta, "its second line")
    named, sources = version == "v2", {}
    for position, line in enumerate(lines):
        name, colon, offset = line.partition(":") if named else (str(position), ":", line)
        if not colon:
            raise ValueError(f"the line {line[:40]!r} has no source's name")
        if not offset or offset.startswith(("{", "[", '"')):
            # A source may write text that is not JSON; text that begins like JSON was cut off.
            require_json(offset, f"the offset of source {name!r}")
        sources[name] = offset
    return OffsetLog(sources, named)


def require_json(text: str, what: str) -> None:
    """Raise a ``ValueError`` that names what is not JSON, such as text that was cut off."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON ({error})") from None
