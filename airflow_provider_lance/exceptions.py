"""Every error that the package raises on purpose, in one tree.

The tree::

    LanceStreamError
    ├── TerminalError                     no retry: it would fail again
    │   ├── SpecError                     usage: an option or argument is wrong
    │   ├── PreconditionError             refused in the present state
    │   │   └── DriverAliveError          a driver is alive, or may be
    │   ├── FencedError                   another driver owns the query
    │   ├── DatasetNotFoundError
    │   ├── DatasetRestoredError
    │   ├── HistoryGapError
    │   ├── CheckpointMismatchError
    │   ├── CheckpointCorruptError
    │   ├── ProtocolVersionError
    │   ├── SchemaMismatchError
    │   ├── SideTableError                a further dataset of the query is not as it was
    │   ├── RowsRefusedError
    │   ├── UserFunctionError
    │   ├── SourceDataLossError
    │   ├── SourceNotFoundError           a topic is not there
    │   ├── SourceReplacedError           a topic of the same name, and not the same topic
    │   ├── SourceChangedError            a read dataset updates, deletes or overwrites rows
    │   └── AccessDeniedError
    └── TransientError                    a retry may succeed
        ├── CommitPreemptedError
        │   └── RowsChangedError          others changed rows that an epoch was compared with
        ├── CommitStateUnknownError
        ├── MasterUnreachableError
        └── StorageUnavailableError
            └── ChecksumMismatchError

The two branches decide every retry. A message says what was seen, with the values, what it means
and what to do. This module is shipped to the cluster and imports nothing.
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError",
    "CheckpointCorruptError",
    "CheckpointMismatchError",
    "ChecksumMismatchError",
    "CommitPreemptedError",
    "CommitStateUnknownError",
    "DatasetNotFoundError",
    "DatasetRestoredError",
    "DriverAliveError",
    "FencedError",
    "HistoryGapError",
    "LanceStreamError",
    "MasterUnreachableError",
    "PreconditionError",
    "ProtocolVersionError",
    "RowsChangedError",
    "RowsRefusedError",
    "SchemaMismatchError",
    "SideTableError",
    "SourceChangedError",
    "SourceDataLossError",
    "SourceNotFoundError",
    "SourceReplacedError",
    "SpecError",
    "StorageUnavailableError",
    "TerminalError",
    "TransientError",
    "UserFunctionError",
    "error_class",
]


class LanceStreamError(Exception):
    """A Lance stream failed."""

    def __init__(self, message: str | None = None, *, detail: str = "") -> None:
        """Take a message for people.

        :param detail: what was seen, word for word, where the message has only the gist.
        """
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.detail = detail


class TerminalError(LanceStreamError):
    """The same call fails again until something is changed."""


class FencedError(TerminalError):
    """A newer owner holds the query; this driver must stop."""


class CheckpointMismatchError(TerminalError):
    """The epoch watermark belongs to another checkpoint, or to a newer state of this one."""


class DatasetRestoredError(TerminalError):
    """An older version of the dataset was restored, and it lacks epochs that Spark has as done."""


class CheckpointCorruptError(TerminalError):
    """A file of Spark's checkpoint cannot be read as Spark wrote it."""


class HistoryGapError(TerminalError):
    """The versions that would prove an epoch were cleaned up."""


class ProtocolVersionError(TerminalError):
    """The dataset's protocol is newer than this package, or its config is invalid.

    :ivar newer: whether a newer package wrote it, so that an upgrade reads it.
    """

    def __init__(self, message: str = "", *, newer: bool = False) -> None:
        super().__init__(message)
        self.newer = newer


class SchemaMismatchError(TerminalError):
    """The stream's columns do not fit the dataset's schema."""


class SideTableError(TerminalError):
    """A side table of the query is missing, was replaced, or has an epoch of other options."""


class RowsRefusedError(TerminalError):
    """A row of the epoch cannot be written as it is."""

    def __init__(self, message: str | None = None, *, reason: str = "", detail: str = "") -> None:
        """Take what a quarantine says of the row.

        :param reason: why in a few words, without values: equal for all rows with one fault.
        :param detail: what was seen.
        """
        super().__init__(message, detail=detail)
        self.reason = reason


class DatasetNotFoundError(TerminalError):
    """There is no Lance dataset at this URI."""


class SpecError(TerminalError):
    """An option is missing, unknown or of the wrong form."""


class UserFunctionError(TerminalError):
    """The user's function raised an exception."""


class SourceDataLossError(TerminalError):
    """The source no longer holds records that the query has not read."""


class SourceNotFoundError(TerminalError):
    """What the stream reads is not there."""


class SourceReplacedError(TerminalError):
    """What the stream reads was deleted and created again; its offsets name other records."""


class SourceChangedError(TerminalError):
    """A version of the dataset that a stream reads does more than append rows."""


class AccessDeniedError(TerminalError):
    """The store or the broker denied access."""


class PreconditionError(TerminalError):
    """The command is refused in the present state of the dataset or checkpoint."""


class DriverAliveError(PreconditionError):
    """A driver of the query is alive, or may be."""


class TransientError(LanceStreamError):
    """The same call may succeed later."""


class CommitPreemptedError(TransientError):
    """Another commit landed first, and this one did not."""


class RowsChangedError(CommitPreemptedError):
    """Others changed rows after an epoch's records were compared with them; nothing landed."""


class CommitStateUnknownError(TransientError):
    """A commit was sent and its outcome is unknown."""


class MasterUnreachableError(TransientError):
    """Spark's master does not answer."""


class StorageUnavailableError(TransientError):
    """The store did not answer, or refused."""

    def __init__(
        self, message: str | None = None, *, detail: str = "", denied: bool = False
    ) -> None:
        """Take what the store said.

        :param denied: whether it refuses until credentials or permissions are changed.
        """
        super().__init__(message, detail=detail)
        self.denied = denied


class ChecksumMismatchError(StorageUnavailableError):
    """A file does not match its checksum: it is being written, or it is damaged."""


def error_class(name: str) -> type[LanceStreamError]:
    """Return an error class by its name, as a driver's summary contains it.

    A name that is not in the tree gives :class:`LanceStreamError`.
    """
    pending = [LanceStreamError]
    while pending:
        candidate = pending.pop()
        if candidate.__name__ == name:
            return candidate
        pending.extend(candidate.__subclasses__())
    return LanceStreamError
