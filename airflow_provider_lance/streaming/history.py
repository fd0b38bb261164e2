"""The exact watermark: what the config says, and the epochs stamped in the versions since."""

from __future__ import annotations

from airflow_provider_lance.exceptions import CommitStateUnknownError
from airflow_provider_lance.streaming.epoch import (
    EpochStamp,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
)
from airflow_provider_lance.streaming.port import DatasetPort
from airflow_provider_lance.streaming.properties import decode_query, decode_stamp

__all__ = ["WatermarkReader", "exact_watermark", "find_epoch"]


def exact_watermark(port: DatasetPort, query_id: str) -> Watermark:
    """Return the exact watermark at the port's version. Everyone who shows it calls this.

    Reads one transaction per version since the last fold, and none while the owner is
    ``released``: a release folds, and nobody commits an epoch before the next claim.

    :raises ProtocolVersionError: the dataset speaks a newer protocol.
    :raises StorageUnavailableError: the store did not answer.
    """
    return WatermarkReader(port, query_id).at(port)


class WatermarkReader:
    """Follows one query's watermark; reads each version of the dataset once."""

    def __init__(self, port: DatasetPort, query_id: str) -> None:
        self._port, self._query_id = port, query_id
        self._read_to = 0
        self._stamps: tuple[EpochStamp, ...] = ()
        self._missing: tuple[int, ...] = ()

    def read(self) -> Watermark:
        """Return the watermark at the newest version: one listing, and only what is new."""
        self._port = self._port.latest()
        return self.at(self._port)

    def at(self, port: DatasetPort) -> Watermark:
        """Return the watermark at the port's version."""
        state = decode_query(port.config, self._query_id, port.version)
        if state.owner is None or state.owner.state is OwnerState.RELEASED:
            self._stamps, self._missing, self._read_to = (), (), port.version
            return Watermark(state.watermark, port.version, state.committed_at)
        if self._read_to < state.folded_version:
            self._stamps, self._missing, self._read_to = (), (), state.folded_version
        self._read(port)
        return _combine(state, self._stamps, self._missing)

    def _read(self, port: DatasetPort) -> None:
        for version in range(self._read_to + 1, port.version + 1):
            properties = port.properties(version)
            if properties is None:
                self._missing += (version,)
            elif stamp := decode_stamp(properties, self._query_id, version):
                self._stamps += (stamp,)
        self._read_to = max(self._read_to, port.version)


def _combine(
    state: QueryState, stamps: tuple[EpochStamp, ...], missing: tuple[int, ...]
) -> Watermark:
    current = tuple(
        stamp
        for stamp in stamps
        if stamp.generation == state.generation and stamp.version > state.folded_version
    )
    newest = max(current, key=lambda stamp: stamp.epoch_id, default=None)
    if newest is None or newest.epoch_id <= state.watermark:
        epoch, committed_at = state.watermark, state.committed_at
    else:
        epoch, committed_at = newest.epoch_id, newest.committed_at
    # A reader that is kept has also seen gaps below the fold: those no longer matter.
    gaps = sum(version > state.folded_version for version in missing)
    return Watermark(epoch, state.version, committed_at, current, gaps)


def find_epoch(
    port: DatasetPort, query_id: str, owner: Owner, epoch_id: int, *, after: int
) -> EpochStamp | None:
    """Look for an epoch that this owner committed, in the versions after ``after``, newest first.

    The same epoch by another owner is no answer to whether one's own commit landed.

    :raises CommitStateUnknownError: it was not found, and a version that may have held it is gone.
    """
    missing = 0
    for version in range(port.version, after, -1):
        properties = port.properties(version)
        if properties is None:
            missing += 1
            continue
        stamp = decode_stamp(properties, query_id, version)
        if stamp and (stamp.token, stamp.epoch_id) == (owner.token, epoch_id):
            return stamp
    if missing:
        raise CommitStateUnknownError(
            f"whether epoch {epoch_id} of query {query_id!r} landed cannot be seen: {missing} of "
            f"the versions of {port.uri} after {after} were cleaned up. The next start compares "
            "them with Spark's log and says what to do; let cleanup keep versions for longer"
        )
    return None
