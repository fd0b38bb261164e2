"""The exact watermark: what the config says, and the epochs stamped in the versions since.

A version that landed need not be part of the newest version: an older one may have been restored
over it, or a paused writer may have landed it under a number that a cleanup freed. So history is
read backwards from the newest version, along the versions that it was made from. An epoch counts
only if each version above its own exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_lance.exceptions import CommitStateUnknownError
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    EpochStamp,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
)
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = [
    "WatermarkReader",
    "exact_watermark",
    "find_epoch",
    "known_done",
    "newest_done",
    "versions_of",
]


def exact_watermark(
    port: DatasetPort, query_id: str, *, spark_done: int | None = None
) -> Watermark:
    """Return the exact watermark at the port's version; every place that shows it calls this.

    Reads one transaction per version since the last fold, and none while the owner is ``released``:
    a release folds, and no epoch is committed before the next claim.

    :param spark_done: the newest epoch in Spark's commit log. If it is above what a release folded,
        the versions since are read nevertheless: an older one may have been restored.
    :raises ProtocolVersionError: the dataset uses a newer protocol.
    :raises StorageUnavailableError: the store did not answer.
    """
    return WatermarkReader(port, query_id).at(port, spark_done=spark_done)


@dataclass(frozen=True, slots=True)
class _Record:
    """One version's transaction, as far as it concerns a query; ``gone`` if it was cleaned up."""

    stamp: EpochStamp | None = None
    restored: int | None = None
    gone: bool = False


@dataclass(slots=True)
class _Chain:
    """What was found between the newest version and the last fold."""

    proven: list[EpochStamp] = field(default_factory=list)
    missing: int = 0
    missing_above: int = 0
    undone: list[EpochStamp] = field(default_factory=list)
    undone_by: tuple[int, int] | None = None
    undone_missing: bool = False


class WatermarkReader:
    """Follows one query's watermark; reads each version of the dataset once."""

    def __init__(self, port: DatasetPort, query_id: str) -> None:
        self._port, self._query_id = port, query_id
        self._records: dict[int, _Record] = {}

    def read(self) -> Watermark:
        """Return the watermark at the newest version: one listing, and only new versions."""
        self._port = self._port.latest()
        return self.at(self._port)

    def at(
        self, port: DatasetPort, *, spark_done: int | None = None, to_gap: bool = False
    ) -> Watermark:
        """Return the watermark at the port's version; see :func:`exact_watermark`.

        :param to_gap: read no further back than the newest version that is missing.
        """
        state = decode_query(port.config, self._query_id, port.version)
        released = state.owner is None or state.owner.state is OwnerState.RELEASED
        if released and (spark_done is None or spark_done <= known_done(state)):
            self._records.clear()
            return Watermark(state.watermark, port.version, state.committed_at)
        for version in [each for each in self._records if each <= state.folded_version]:
            del self._records[version]
        return _combine(state, self._walk(port, state, to_gap))

    def _walk(self, port: DatasetPort, state: QueryState, to_gap: bool) -> _Chain:
        chain, version = _Chain(), port.version
        while version > state.folded_version and not (to_gap and chain.missing):
            record = self._record(port, version)
            if record.gone:
                chain.missing += 1
                chain.missing_above += not chain.proven
            elif record.restored is not None and record.restored < version:
                self._skip(port, chain, version, record.restored)
                version = record.restored
                continue
            elif (
                record.stamp
                and not chain.missing_above
                and record.stamp.generation == state.generation
            ):
                chain.proven.append(record.stamp)
            version -= 1
        return chain

    def _skip(self, port: DatasetPort, chain: _Chain, version: int, restored: int) -> None:
        """Record what the versions between a restored version and the restoring one held."""
        for number in range(version - 1, restored, -1):
            record = self._record(port, number)
            chain.undone_missing |= record.gone
            if record.stamp:
                chain.undone.append(record.stamp)
            if record.gone or record.stamp:
                chain.undone_by = chain.undone_by or (version, restored)

    def _record(self, port: DatasetPort, version: int) -> _Record:
        if version not in self._records:
            self._records[version] = _read(port, self._query_id, version)
        return self._records[version]


def known_done(state: QueryState) -> int:
    """Return the newest epoch that the config records as done, with or without rows."""
    return max(state.watermark, state.done.epoch_id if state.done else NO_EPOCH)


def newest_done(state: QueryState, watermark: Watermark) -> DoneEpoch | None:
    """Return the newest epoch that a fold of the watermark may call done, with its end if known."""
    if watermark.epoch == NO_EPOCH or (state.done and state.done.epoch_id >= watermark.epoch):
        return state.done
    for stamp in watermark.stamps:
        if stamp.epoch_id == watermark.epoch:
            return DoneEpoch(watermark.epoch, stamp.ends, stamp.digest)
    return DoneEpoch(watermark.epoch)


def _read(port: DatasetPort, query_id: str, version: int) -> _Record:
    properties: Mapping[str, str] | None = port.properties(version)
    if properties is None:
        return _Record(gone=True)
    return _Record(decode_stamp(properties, query_id, version), port.restored(version))


def _combine(state: QueryState, chain: _Chain) -> Watermark:
    current = tuple(reversed(chain.proven))
    newest = max(current, key=lambda stamp: stamp.epoch_id, default=None)
    if newest is None or newest.epoch_id <= state.watermark:
        epoch, committed_at = state.watermark, state.committed_at
    else:
        epoch, committed_at = newest.epoch_id, newest.committed_at
    there = {stamp.epoch_id for stamp in current}
    undone = sorted(
        (
            stamp
            for stamp in chain.undone
            if stamp.generation == state.generation and stamp.epoch_id not in there
        ),
        key=lambda stamp: stamp.epoch_id,
    )
    return Watermark(
        epoch,
        state.version,
        committed_at,
        current,
        chain.missing,
        chain.missing_above,
        tuple(undone),
        chain.undone_by,
        chain.undone_missing,
    )


def versions_of(port: DatasetPort, after: int) -> Iterator[tuple[int, Mapping[str, str] | None]]:
    """Yield the versions above one that the port's was made from, newest first, with properties."""
    version = port.version
    while version > after:
        properties = port.properties(version)
        yield version, properties
        restored = port.restored(version) if properties is not None else None
        version = version - 1 if restored is None else restored


def find_epoch(
    port: DatasetPort, query_id: str, owner: Owner, epoch_id: int, *, after: int
) -> EpochStamp | None:
    """Look for an epoch that this owner committed, in the versions after ``after``, newest first.

    The same epoch by another owner does not answer whether this owner's commit landed.

    :raises CommitStateUnknownError: a version that may have held it is gone.
    """
    for version, properties in versions_of(port, after):
        if properties is None:
            raise CommitStateUnknownError(
                f"whether epoch {epoch_id} of query {query_id!r} landed cannot be seen: version "
                f"{version} of {port.uri} was cleaned up, and maybe others after {after}. The "
                "next start compares them with Spark's log and says what to do; let cleanup keep "
                "versions for longer"
            )
        stamp = decode_stamp(properties, query_id, version)
        if stamp and (stamp.token, stamp.epoch_id) == (owner.token, epoch_id):
            return stamp
    return None
