"""Spark's checkpoint, read without Spark: its id, the epochs planned and the epochs done.

Format seen on Spark 3.5 to 4.3: `metadata` holds ``{"id": …}``, `offsets/N` is written when epoch
N is planned, `commits/N` after the sink's commit; the newest 100 of each are kept. The second line
of `offsets/N` holds ``{"batchTimestampMs": …}``, the start of the trigger that planned N.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_provider_lance.exceptions import CheckpointMismatchError, StorageUnavailableError
from airflow_provider_lance.streaming.epoch import NO_EPOCH
from airflow_provider_lance.streaming.files import Files

__all__ = ["Checkpoint", "read_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One look at a checkpoint; ``id`` is ``None`` while Spark has not made it yet.

    ``planned_at`` is when the epoch in flight was planned, ISO 8601 in UTC; ``None`` when none is,
    or when its file does not say. ``ends`` holds the end offsets of the newest two planned epochs:
    Spark goes on from these.
    """

    location: str
    id: str | None = None
    planned: int = NO_EPOCH
    committed: int = NO_EPOCH
    planned_at: str | None = None
    ends: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def in_flight(self) -> int | None:
        """Return the epoch that is planned and not known to be done: the only one in doubt."""
        return self.planned if self.planned > self.committed else None


def read_checkpoint(location: str, files: Files) -> Checkpoint:
    """Read a checkpoint's state; three small reads, one more while an epoch is in flight.

    :raises CheckpointMismatchError: `metadata` is there and no id can be read from it.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    # `commits` is read before `offsets`: a live query can only make `planned` look newer, which
    # leaves an epoch in doubt; the other order could make one look done that is not.
    committed = _newest(files, "commits")
    planned = _newest(files, "offsets")
    planned_at = _planned_at(files, planned) if planned > committed else None
    return Checkpoint(location, _identity(location, files), planned, committed, planned_at)


def _identity(location: str, files: Files) -> str | None:
    content = files.read("metadata")
    if content is None:
        return None
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatchError(
            f"the checkpoint at {location} has a `metadata` file without a readable id "
            f"({type(error).__name__}: {error}); restore the file, or start a new checkpoint with "
            "a new queryId"
        ) from error


def _newest(files: Files, folder: str) -> int:
    # Spark leaves names such as `.5.crc`, `.6.uuid.tmp` and `9.compact` beside the numbers.
    return max((int(name) for name in files.names(folder) if name.isdigit()), default=NO_EPOCH)


def _planned_at(files: Files, epoch_id: int) -> str | None:
    """Read when an epoch was planned; what cannot be read is no error, no decision hangs on it."""
    try:
        _, meta, *_ = (files.read(f"offsets/{epoch_id}") or b"").split(b"\n")
        moment = datetime.fromtimestamp(json.loads(meta)["batchTimestampMs"] / 1000, UTC)
    except (StorageUnavailableError, ValueError, KeyError, TypeError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds")
