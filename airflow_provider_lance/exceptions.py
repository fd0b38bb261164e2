"""Every error that the package raises on purpose, in one tree.

The two branches decide every retry: a :class:`TerminalError` recurs on every further call, a
:class:`TransientError` may disappear later. A message says what was seen, with the values, and what
to do next. This module is shipped to the cluster and imports nothing.
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
    "RowsRefusedError",
    "SchemaMismatchError",
    "SourceDataLossError",
    "SpecError",
    "StorageUnavailableError",
    "TerminalError",
    "TransientError",
    "UserFunctionError",
    "error_class",
]


class LanceStreamError(Exception):
    """Something in a Lance stream went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class TerminalError(LanceStreamError):
    """Retrying cannot help; somebody has to change something first."""


class FencedError(TerminalError):
    """A newer owner holds the query; this driver must stop."""


class CheckpointMismatchError(TerminalError):
    """This checkpoint is not the one the epoch watermark belongs to."""


class DatasetRestoredError(TerminalError):
    """Somebody brought an older version of the dataset back, and epochs went with it."""


class CheckpointCorruptError(TerminalError):
    """A file of Spark's checkpoint cannot be read as Spark wrote it."""


class HistoryGapError(TerminalError):
    """The evidence for an epoch was cleaned up."""


class ProtocolVersionError(TerminalError):
    """The dataset speaks a newer protocol than this package, or holds what no version writes."""


class SchemaMismatchError(TerminalError):
    """The stream's columns do not fit the dataset's schema."""


class RowsRefusedError(TerminalError):
    """A row of the epoch cannot be written as it is."""


class DatasetNotFoundError(TerminalError):
    """There is no Lance dataset at this URI."""


class SpecError(TerminalError):
    """An option is missing, unknown or of the wrong form."""


class UserFunctionError(TerminalError):
    """A function of the user raised an exception, and would raise it again."""


class SourceDataLossError(TerminalError):
    """The source no longer holds records that the query has not read."""


class AccessDeniedError(TerminalError):
    """The store or the broker does not let this user read or write there."""


class PreconditionError(TerminalError):
    """What was asked for is refused, as things stand in the dataset or the checkpoint."""


class DriverAliveError(PreconditionError):
    """A driver of the query is alive, or that cannot be told."""


class TransientError(LanceStreamError):
    """The same call may succeed later."""


class CommitPreemptedError(TransientError):
    """Another commit landed first and this one did not."""


class CommitStateUnknownError(TransientError):
    """A commit was sent and its outcome is not known."""


class MasterUnreachableError(TransientError):
    """Spark's master does not answer."""


class StorageUnavailableError(TransientError):
    """The store did not answer, or refused for now."""


class ChecksumMismatchError(StorageUnavailableError):
    """A file and its checksum disagree: it is being written, or it is damaged."""


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
