"""How far a streaming query has read a Lance dataset: the source's offset in Spark's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.decoding import Reader, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["SOURCE_VERSION", "SourceOffset"]

SOURCE_VERSION = 1
"""The version of this form; a reader refuses a newer one by name."""


def _index(value: object) -> int | None:
    return None if value is None else whole(value)


def _start(value: object) -> SourceOffset | None:
    """Read where a query began; that offset has no start of its own."""
    if not isinstance(value, Mapping):
        return None if value is None else SourceOffset.read_json(value)
    return SourceOffset.read_json({**value, "start": None})


@dataclass(frozen=True, slots=True)
class SourceOffset(JsonRecord):
    """A position in a dataset's history; everything before it has been read.

    ``index`` rows of ``version`` have been read, all of them if it is ``None``. ``snapshot`` says
    that the whole table at ``version`` is read, and not only what ``version`` changed.
    ``timestamp`` is when ``version`` was committed, in microseconds since 1970 (UTC), as its
    manifest says; another dataset in the same place has another one. With ``change_feed``,
    ``index`` counts changed rows, where an update is one.

    ``start`` is where the query began, in the offset that ends its first epoch: Spark logs only the
    ends of epochs, and the newest version is another one when it asks for the beginning again.
    """

    version: int
    timestamp: int
    index: int | None = None
    snapshot: bool = False
    change_feed: bool = False
    source_version: int = SOURCE_VERSION
    start: SourceOffset | None = None

    json_name: ClassVar[str] = "the offset of a Lance source"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "version": partial(whole, least=1),
        "index": _index,
        "start": _start,
    }

    def __str__(self) -> str:
        """Return the offset as people read it."""
        if self.index is None:
            return f"version {self.version}"
        what = "the snapshot of version" if self.snapshot else "version"
        return f"row {self.index} of {what} {self.version}"

    @property
    def is_first(self) -> bool:
        """Return whether the query begins here."""
        return self.start is not None and self.start == replace(self, start=None)

    def as_first(self) -> Self:
        """Return the offset as the one where the query begins."""
        return replace(self, start=replace(self, start=None))

    @property
    def oldest_needed(self) -> int:
        """Return the oldest version that reading on from here needs; cleanup must keep it."""
        # The rest of a changed version is found by comparing it with the one before.
        in_changes = self.change_feed and self.index is not None and not self.snapshot
        return max(1, self.version - in_changes)

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

    def at_index(self, index: int | None) -> Self:
        """Return the offset after ``index`` rows of the same version; ``None``: after all."""
        return replace(self, index=index, snapshot=self.snapshot and index is not None)
