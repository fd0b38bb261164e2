"""Notes, before an epoch's rows are read, what Spark planned for it; see :mod:`.offset_notes`."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.protocol.model import EndOffsets
from airflow_provider_lance.protocol.offset_notes import (
    OffsetNote,
    OffsetNotes,
    files_of,
    read_entries,
)
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.spark.active_query import ActiveQuery

__all__ = ["NoteTaker"]

log = logging.getLogger(__name__)


class NoteTaker:
    """Takes the notes of one run's epochs."""

    def __init__(self, session: DriverSession, query: ActiveQuery, checkpoint: Path) -> None:
        """Store the arguments; no I/O.

        :param query: Spark's memory of the query.
        :param checkpoint: its folder, on a local disk.
        """
        self._session, self._query = session, query
        self._checkpoint, self._notes = checkpoint, OffsetNotes(checkpoint)

    def note(self, epoch_id: int, ends: EndOffsets) -> bool:
        """Note an epoch; own the query if another driver has noted it otherwise.

        :returns: whether no other driver has; otherwise, decide again what to do with the epoch.
        :raises FencedError: another driver owns the query, or has done the epoch.
        :raises CommitPreemptedError: another driver has replaced an entry of a file source's log.
        :raises StorageUnavailableError: the note cannot be written.
        """
        note = OffsetNote(ends, self._entries(epoch_id))
        if self._notes.add(epoch_id, note):
            return True
        self._session.contend(epoch_id)
        log.warning("Another driver had planned the epoch otherwise. epoch=%d", epoch_id)
        self._notes.replace(epoch_id, note)
        return False

    def _entries(self, epoch_id: int) -> dict[str, EndOffsets]:
        """Return the entries of file sources' logs that the epoch reads, by path."""
        entries = {
            f"{folder}/{number}": lines
            for folder, numbers in self._query.entries(epoch_id).items()
            for number, lines in read_entries(self._checkpoint / folder, numbers).items()
        }
        read = self._query.files_read() if entries else None
        if read is not None:
            try:
                listed = files_of(itertools.chain.from_iterable(entries.values()))
            except ValueError:
                listed = set()
            if listed != read:
                raise CommitPreemptedError(
                    f"{' and '.join(entries)} of the checkpoint at {self._checkpoint} lists "
                    f"{len(listed)} files, and epoch {epoch_id} was planned with {len(read)} other "
                    "ones: another driver has written the entry since. Nothing of the epoch was "
                    "committed; start the stream again, which plans it from the entry"
                )
        return {path: EndOffsets.of(lines) for path, lines in entries.items()}
