"""The versions of a dataset that a consumer has not read: those after its position with rows."""

from __future__ import annotations

from airflow_provider_lance.exceptions import SourceDataLossError
from airflow_provider_lance.protocol.consumers import Consumer
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.source.changes import Effect, effect_of

__all__ = ["UnreadVersions"]

_MOST = 200
"""The most versions that one call reads; the source moves a position past every hundredth version
without rows."""


class UnreadVersions:
    """Finds the first version with rows that a consumer has not read; reads each version once."""

    def __init__(self) -> None:
        self._effects: dict[int, Effect] = {}

    def first(self, port: LanceDatasetPort, consumer: Consumer, last: int) -> int | None:
        """Return the first version up to ``last`` that is not read, ``None`` if all of them are.

        A version that was cleaned up counts as one with rows, and so does the first that this call
        has no time to read.

        :raises StorageUnavailableError: the store did not answer.
        """
        offset = consumer.offset
        if offset.index is not None and offset.version <= last:
            return offset.version
        after = range(offset.version + 1, last + 1)
        self._effects = {number: each for number, each in self._effects.items() if number in after}
        before: LanceDatasetPort | None = None
        read = 0
        for number in after:
            if number not in self._effects:
                if read == _MOST:
                    return number
                read += 1
                if before is None or before.version != number - 1:
                    before = port.at(number - 1)
                here = port.at(number)
                self._effects[number] = _effect(here, before)
                before = here
            if not _passes_over(consumer, self._effects[number]):
                return number
        return None


def _passes_over(consumer: Consumer, effect: Effect) -> bool:
    if effect in (Effect.APPEND, Effect.RESTORE):
        return False
    ignored = consumer.ignore_deletes and effect is Effect.DELETE
    return effect is Effect.NONE or consumer.skip_change_commits or ignored


def _effect(here: LanceDatasetPort | None, before: LanceDatasetPort | None) -> Effect:
    if here is None:
        return Effect.RESTORE  # no consumer can pass over it
    try:
        found = effect_of(here, before, columns=here.dataset.schema.names)
    except SourceDataLossError:  # only the version before it would tell
        return Effect.RESTORE
    return Effect.NONE if found.effect is Effect.APPEND and not found.units else found.effect
