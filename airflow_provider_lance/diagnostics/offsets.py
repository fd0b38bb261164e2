"""Source offsets of single epochs, read from a checkpoint.

Spark writes the end offsets of epoch N into `offsets/N` when it plans it. An epoch starts where the
one before it ended. The newest 100 are kept (seen on Spark 3.5 to 4.3).
"""

from __future__ import annotations

from airflow_provider_lance.exceptions import CheckpointCorruptError
from airflow_provider_lance.protocol.checkpoint import (
    VOID_OFFSET,
    OffsetLog,
    epoch_of,
    read_offset_log,
)
from airflow_provider_lance.protocol.files import Files

__all__ = ["EpochLogs", "Offsets"]

Offsets = tuple[str, ...]
"""One text per source, JSON as the source writes it; ``-`` where it has none yet.

Where sources have names, each text begins with its source's name and a colon.
"""


class EpochLogs:
    """Spark's two logs of one checkpoint; each file is read once."""

    def __init__(self, files: Files) -> None:
        """List the commit log, and read nothing else.

        :raises StorageUnavailableError: the store did not answer or refused.
        """
        self._files = files
        epochs = map(epoch_of, files.names("commits"))
        self._done = {epoch for epoch in epochs if epoch is not None}
        self._logs: dict[int, OffsetLog | None] = {}

    def committed(self, epoch: int) -> bool | None:
        """Tell whether Spark logged an epoch as done; ``None`` if it is older than the log."""
        if epoch in self._done:
            return True
        return None if self._done and epoch < min(self._done) else False

    def end(self, epoch: int) -> Offsets | None:
        """Return where an epoch ends; ``None`` if Spark no longer has it, or cannot read it."""
        log = self._log(epoch)
        return log.lines if log else None

    def start(self, epoch: int) -> Offsets | None:
        """Return where an epoch starts, in the order of its end; the first starts at nothing."""
        end, before = self._log(epoch), self._log(epoch - 1) if epoch > 0 else None
        if epoch > 0 and (before is None or end is None):
            return before.lines if before else None
        if end is None:
            return None
        known = before.sources if before else {}
        starts = {source: known.get(source, VOID_OFFSET) for source in end.sources}
        return OffsetLog(starts, named=end.named).lines

    def _log(self, epoch: int) -> OffsetLog | None:
        if epoch not in self._logs:
            try:
                self._logs[epoch] = read_offset_log(self._files, epoch)
            except CheckpointCorruptError:  # a finding of its own
                self._logs[epoch] = None
        return self._logs[epoch]
