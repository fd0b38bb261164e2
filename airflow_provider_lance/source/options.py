"""The source's options, as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol import option_parsers as forms
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.option_parsers import option

__all__ = ["LANCE", "LATEST", "SourceOptions"]

LANCE = "lance"
"""The name for Spark's ``format``."""

LATEST = "latest"
"""The ``startingVersion`` that reads only what is committed after the query's first start."""


def _starting_version(value: Any) -> int | str:
    if value == LATEST:
        return LATEST
    try:
        return forms.positive(value)
    except ValueError:
        raise ValueError(f"{LATEST!r} or the number of a version") from None


def _moment(value: Any) -> datetime:
    text = forms.text(value)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as '2026-11-22T06:00:00+00:00'") from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _consumer(value: Any) -> str:
    try:
        return require_query_id(value)
    except SpecError:
        raise ValueError(
            "up to 128 letters, digits, '.', '_' and '-', the first a letter or digit"
        ) from None


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """The source's options, by the names that users type; Spark ignores their case.

    - ``path``: the dataset, absolute; required.
    - ``columns``: the columns to read; by default those that a stream's ``sql`` needs, without
      one all of them.
    - ``startingVersion``: the first version whose changes are read, or ``latest``; by default the
      query reads the newest version as a snapshot, then what later versions change.
    - ``startingTimestamp``: read what versions since this time (ISO 8601, UTC by default) changed.
    - ``maxRowsPerTrigger``, ``maxBytesPerTrigger``, ``maxVersionsPerTrigger``: bounds of one epoch,
      which also divide a large version and the snapshot. Bytes are those of the data files.
    - ``readChangeFeed``: read inserted, updated and deleted rows, with ``_change_type``,
      ``_commit_version`` and ``_commit_timestamp``. The dataset needs stable row ids.
    - ``ignoreDeletes``: pass over versions that only delete rows.
    - ``skipChangeCommits``: pass over versions that update, delete or overwrite rows.
    - ``consumerId``: the name under which the query leaves its position in the dataset, so that
      cleanup keeps what it still needs; a stream of the operator uses its query id.
    """

    path: str = option(forms.location, "", name="path")
    columns: tuple[str, ...] = option(forms.names, (), name="columns")
    starting_version: int | str | None = option(_starting_version, None, name="startingVersion")
    starting_timestamp: datetime | None = option(_moment, None, name="startingTimestamp")
    max_rows: int = option(forms.positive, 10_000_000, name="maxRowsPerTrigger")
    max_bytes: int | None = option(forms.positive, None, name="maxBytesPerTrigger")
    max_versions: int = option(forms.positive, 1_000, name="maxVersionsPerTrigger")
    read_change_feed: bool = option(forms.flag, False, name="readChangeFeed")
    ignore_deletes: bool = option(forms.flag, False, name="ignoreDeletes")
    skip_change_commits: bool = option(forms.flag, False, name="skipChangeCommits")
    consumer_id: str | None = option(_consumer, None, name="consumerId")

    what = "options of the lance source"

    @classmethod
    def spelled(cls, options: Mapping[str, str]) -> Self:
        """Parse options whose names may be in any case: Spark ignores it, and may lose it.

        :raises SpecError: as :meth:`parse`.
        """
        names = {str(item.metadata["name"]).lower(): item.metadata["name"] for item in fields(cls)}
        return cls.parse({names.get(name.lower(), name): each for name, each in options.items()})

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse missing and contradicting options; see :meth:`Options.check`."""
        if not self.path:
            raise SpecError(f"{self.what}: path is missing, the dataset to read")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise SpecError(
                f"{self.what}: give startingVersion or startingTimestamp, not both; got "
                f"{self.starting_version} and {self.starting_timestamp.isoformat()}"
            )
        passed_over = [
            name
            for name, value in (
                ("ignoreDeletes", self.ignore_deletes),
                ("skipChangeCommits", self.skip_change_commits),
            )
            if value
        ]
        if self.read_change_feed and passed_over:
            raise SpecError(
                f"{self.what}: readChangeFeed=true reads every change, and {passed_over[0]}=true "
                "passes over some: give one of them"
            )
