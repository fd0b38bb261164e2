"""Source offsets of single epochs, read from a checkpoint.

Spark writes the end offsets of epoch N into `offsets/N` when it plans it: a line `v1`, a line of
JSON about the trigger, then one line per source, ``-`` for a source that has none yet. An epoch
starts where the one before it ended. The newest 100 are kept (seen on Spark 3.5 to 4.3).
"""

from __future__ import annotations

from airflow_provider_lance.streaming.files import Files

__all__ = ["EpochLogs", "Offsets"]

Offsets = tuple[str, ...]
"""One text per source, JSON as the source writes it; ``-`` where it has none yet."""

_FORMAT = b"v1"
_NONE = "-"


class EpochLogs:
    """Spark's two logs of one checkpoint; each file is read once."""

    def __init__(self, files: Files) -> None:
        """List the commit log, and read nothing else.

        :raises StorageUnavailableError: the store did not answer or refused.
        """
        self._files = files
        self._done = {int(name) for name in files.names("commits") if name.isdigit()}
        self._ends: dict[int, Offsets | None] = {}

    def committed(self, epoch: int) -> bool | None:
        """Tell whether Spark logged an epoch as done; ``None`` if it is older than the log."""
        if epoch in self._done:
            return True
        return None if self._done and epoch < min(self._done) else False

    def end(self, epoch: int) -> Offsets | None:
        """Return where an epoch ends; ``None`` if Spark no longer has it, or not yet."""
        if epoch not in self._ends:
            content = self._files.read(f"offsets/{epoch}")
            self._ends[epoch] = _parse(content) if content else None
        return self._ends[epoch]

    def start(self, epoch: int) -> Offsets | None:
        """Return where an epoch starts; the first starts at nothing."""
        if epoch > 0:
            return self.end(epoch - 1)
        end = self.end(epoch)
        return None if end is None else (_NONE,) * len(end)


def _parse(content: bytes) -> Offsets | None:
    first, _, rest = content.partition(b"\n")
    if first.strip() != _FORMAT:
        return None
    _, *sources = rest.decode("utf-8", "replace").rstrip("\n").split("\n")
    return tuple(sources)
