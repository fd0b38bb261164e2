"""How far a streaming query has read a Lance dataset: the source's offset in Spark's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.decoding import Reader, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["NOT_BEGUN", "SOURCE_VERSION", "SourceOffset"]

SOURCE_VERSION = 1
"""The version of this form; a reader refuses a newer one by name."""


def _index(value: object) -> int | None:
    return None if value is None else whole(value)


@dataclass(frozen=True, slots=True)
class SourceOffset(JsonRecord):
    """A position in a dataset's history; everything before it has been read.

    ``index`` rows of ``version`` have been read, all of them if it is ``None``. ``snapshot`` says
    that the whole table at ``version`` is read, and not only what ``version`` changed.
    ``timestamp`` is when ``version`` was committed, in microseconds since 1970 (UTC), as its
    manifest says; another dataset in the same place has another one. With ``change_feed``,
    ``index`` counts changed rows, where an update is one.
    """

    version: int
    timestamp: int
    index: int | None = None
    snapshot: bool = False
    change_feed: bool = False
    source_version: int = SOURCE_VERSION

    json_name: ClassVar[str] = "the offset of a Lance source"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "version": whole,
        "index": _index,
    }

    def __str__(self) -> str:
        """Return the offset as people read it."""
        if not self.version:
            return "not begun"
        if self.index is None:
            return f"version {self.version}"
        what = "the snapshot of version" if self.snapshot else "version"
        return f"row {self.index} of {what} {self.version}"

    @property
    def oldest_needed(self) -> int:
        """Return the oldest version that reading on from here needs; cleanup must keep it."""
        # The rest of a version's changes is found by comparing it with the one before.
        is_within = self.index is not None and not self.snapshot
        return max(1, self.version - is_within)

    @classmethod
    def read_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made.

        :raises ProtocolVersionError: a newer release wrote it.
        :raises ValueError: a part is missing or has another form.
        """
        if isinstance(given, Mapping):
            written = given.get("sourceVersion")
            if isinstance(written, int) and written > SOURCE_VERSION:
                raise ProtocolVersionError(
                    f"the offset of a Lance source has form {written}, and this release reads form "
                    f"{SOURCE_VERSION}: install the release of airflow-provider-lance that wrote it"
                )
        return cls(**cls.read_arguments(given))

    @classmethod
    def found_in(cls, value: object) -> Self | None:
        """Return the offset that a JSON value is; ``None`` for that of another source."""
        if not isinstance(value, Mapping) or "sourceVersion" not in value:
            return None
        try:
            return cls.read_json(value)
        except (ValueError, ProtocolVersionError):
            return None

    def at_index(self, index: int | None) -> Self:
        """Return the offset after ``index`` rows of the same version; ``None``: after all."""
        return replace(self, index=index, snapshot=self.snapshot and index is not None)


NOT_BEGUN = SourceOffset(0, 0)
"""Where a query without a checkpoint begins: epoch 0 has no rows and ends where reading begins.

Spark asks for the first offset again when it replays epoch 0, and logs only where the epoch ends
(PySpark 4.2.0). A first offset that depends on the newest version would lose rows then.
"""
