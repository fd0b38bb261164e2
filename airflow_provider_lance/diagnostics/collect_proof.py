"""What the versions prove about an epoch that config or drivers report as committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from airflow_provider_lance.diagnostics.evidence import Contradiction, Undone
from airflow_provider_lance.exceptions import FencedError
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.model import NO_EPOCH, EpochStamp, QueryState
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["Versions", "contradictions"]

_READ = 40
"""How many versions are read for one claim: the epoch's own commit is among the first."""

Gone = Literal["gone"]
_GONE: Gone = "gone"


class Versions:
    """A query's stamps by version; each transaction is read once."""

    def __init__(self, port: DatasetPort, query_id: str) -> None:
        self.port, self._query_id = port, query_id
        self._read: dict[int, EpochStamp | Gone | None] = {}

    def stamp(self, version: int) -> EpochStamp | Gone | None:
        """Return a version's stamp, ``None`` if it carries none of this query."""
        if version not in self._read:
            properties = self.port.properties(version)
            self._read[version] = (
                _GONE if properties is None else decode_stamp(properties, self._query_id, version)
            )
        return self._read[version]

    def newest(self, count: int) -> tuple[EpochStamp, ...]:
        """Return at most ``count`` stamps, newest first, from three times as many versions."""
        found: list[EpochStamp] = []
        for version in self._newest(count):
            stamp = self.stamp(version)
            if stamp == _GONE or len(found) == count:
                break
            if isinstance(stamp, EpochStamp):
                found.append(stamp)
        return tuple(found)

    def _newest(self, count: int) -> range:
        return range(self.port.version, max(0, self.port.version - 3 * count), -1)

    def undone(self, count: int, *, after: int) -> tuple[Undone, ...]:
        """Return where one of the same versions restored an older one, which removed epochs.

        Follows the versions that the newest was made from: what was restored again later is not
        gone.

        :param after: the version of the last fold; a fold over a restored version means that the
            loss was reported and accepted.
        """
        jumps: list[tuple[int, int]] = []
        there: set[tuple[int, int]] = set()
        version, oldest = self.port.version, max(after, self.port.version - 3 * count)
        while version > oldest:
            stamp = self.stamp(version)
            if stamp == _GONE:
                break
            if isinstance(stamp, EpochStamp):
                there.add((stamp.generation, stamp.epoch_id))
            restored = self.port.restored(version)
            if restored is None or restored >= version:
                version -= 1
                continue
            jumps.append((version, restored))
            version = restored
        found = []
        for version, restored in jumps:
            span = range(version - 1, max(restored, version - 1 - _READ), -1)
            stamps = [each for each in map(self.stamp, span) if isinstance(each, EpochStamp)]
            gone = [each for each in stamps if (each.generation, each.epoch_id) not in there]
            if gone:
                found.append(Undone(version, restored, tuple(reversed(gone))))
        return tuple(found)

    def search(
        self, version: int, decides: Callable[[EpochStamp], bool]
    ) -> EpochStamp | Gone | None:
        """Return the newest stamp at or below a version that decides; ``None`` if none does.

        "gone" if it is unknown: a version on the way is missing, or it would be too far.
        """
        version = min(version, self.port.version)
        for number in range(version, max(0, version - _READ), -1):
            stamp = self.stamp(number)
            if stamp == _GONE or (isinstance(stamp, EpochStamp) and decides(stamp)):
                return stamp
        return None if version <= _READ else _GONE


def contradictions(
    versions: Versions,
    state: QueryState,
    drivers: tuple[DriverObservation, ...],
    checkpoint_id: str | None,
) -> tuple[Contradiction, ...]:
    """Compare what config and drivers report as committed with what the versions show.

    :param checkpoint_id: of the query's checkpoint; drivers of another checkpoint, which was since
        replaced together with the dataset, are ignored.
    """
    found = [_config_says(versions, state)]
    found += [_driver_says(versions, each) for each in drivers if _is_from(each, checkpoint_id)]
    return tuple(each for each in found if each)


def _is_from(driver: DriverObservation, checkpoint_id: str | None) -> bool:
    """Return whether a driver uses this checkpoint: Spark's progress contains its id."""
    progress = (driver.heartbeat_json or {}).get("progress")
    known = progress.get("id") if isinstance(progress, dict) else None
    return known is not None and known == checkpoint_id


def _config_says(versions: Versions, state: QueryState) -> Contradiction | None:
    """Check the fold: the newest epoch up to it must be the config's watermark."""
    if state.watermark == NO_EPOCH or state.owner is None or not state.folded_version:
        return None
    seen = versions.search(state.folded_version, lambda stamp: True)
    if seen == _GONE:
        return None
    epoch, version = NO_EPOCH, 0
    if isinstance(seen, EpochStamp) and seen.generation == state.generation:
        epoch, version = seen.epoch_id, seen.version
    if epoch >= state.watermark:
        return None
    return Contradiction("", state.watermark, state.folded_version, epoch, version)


def _driver_says(versions: Versions, driver: DriverObservation) -> Contradiction | None:
    """Check the last epoch with rows that a driver reports as committed, and its version."""
    said = _said(driver)
    if said is None:
        return None
    epoch, version = said
    # Epochs grow from version to version: what a later driver committed is skipped.
    seen = versions.search(version, lambda stamp: stamp.epoch_id <= epoch)
    if seen == _GONE and version <= versions.port.version:
        return None
    if not isinstance(seen, EpochStamp):
        return Contradiction(driver.launch_id, epoch, version)
    if seen.epoch_id >= epoch:
        return None  # by this driver, or by an earlier one whose epoch it found and skipped
    return Contradiction(driver.launch_id, epoch, version, seen.epoch_id, seen.version)


def _said(driver: DriverObservation) -> tuple[int, int] | None:
    summary, heartbeat = driver.summary, driver.heartbeat
    if summary and summary.error == FencedError.__name__:
        return None  # its version may belong to the driver that fenced it
    if summary and summary.last_epoch is not None and summary.version is not None:
        return summary.last_epoch, summary.version
    sink = (driver.heartbeat_json or {}).get("sink")
    rows = sink.get("rows") if isinstance(sink, dict) else None
    if heartbeat is None or heartbeat.epoch is None or heartbeat.version is None or not rows:
        return None
    return heartbeat.epoch, heartbeat.version
