"""The versions of a dataset that a position has not read: those after it that change rows."""

from __future__ import annotations

from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.source_offset import SourceOffset

__all__ = ["UnreadVersions"]

_NEUTRAL = frozenset({"CreateIndex", "Merge", "Project", "Rewrite", "UpdateConfig"})
"""Lance's names of operations that change no rows."""

_MOST = 200
"""The most versions that one call reads; the source moves a position past every hundredth version
without rows."""


class UnreadVersions:
    """Finds the first version with rows that a position has not read; reads each version once."""

    def __init__(self) -> None:
        self._changes: dict[int, bool] = {}

    def first(self, port: LanceDatasetPort, offset: SourceOffset, last: int) -> int | None:
        """Return the first version up to ``last`` that is not read, ``None`` if all of them are.

        A version that was cleaned up counts as one with rows, and so does the first that this call
        has no time to read.

        :raises StorageUnavailableError: the store did not answer.
        """
        if offset.index is not None and offset.version <= last:
            return offset.version
        after = range(offset.version + 1, last + 1)
        known = {number: found for number, found in self._changes.items() if number in after}
        self._changes = known
        read = 0
        for number in after:
            if number not in known:
                if read == _MOST:
                    return number
                read += 1
                known[number] = _changes_rows(port, number)
            if known[number]:
                return number
        return None


def _changes_rows(port: LanceDatasetPort, version: int) -> bool:
    transaction = port.transaction(version)
    if transaction is None:
        return True
    name = type(transaction.operation).__name__
    if name != "BaseOperation":
        return name not in _NEUTRAL
    # pylance does not say what this operation does; such as the first commit of a compaction.
    before, here = port.at(version - 1), port.at(version)
    if before is None or here is None:
        return True
    return _fragments(before) != _fragments(here)


def _fragments(port: LanceDatasetPort) -> list[object]:
    return [each.metadata.to_json() for each in port.dataset.get_fragments()]
