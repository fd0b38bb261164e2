"""Write mended rows of a quarantine back into the table, each feed exactly once.

A feed is three commits: its name at the rows in the quarantine, the rows in the table with the
feed's name in the same transaction, and the time at the rows in the quarantine. A feed that ended
after the first is looked for in the table's history, behind a barrier, before its rows are fed
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import uuid4

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    HistoryGapError,
    PreconditionError,
    SchemaMismatchError,
    SpecError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.protocol.port import Append, Barrier, Change, Upsert
from airflow_provider_lance.protocol.row_ids import known_first, look_up
from airflow_provider_lance.protocol.watermark import versions_of
from airflow_provider_lance.repair.feed_plan import FeedPlan, Mended, plan_feed

__all__ = ["MOST_ROWS", "FeedResult", "FeedStep", "feed_rows"]

MOST_ROWS = 10_000
"""The most rows of one feed."""

_FEED, _FEED_OF, _ROWS = "streaming.feed", "streaming.feedOf", "streaming.feedRows"
_ENDED = "streaming.feedEnded"
"""On a barrier: the feed that it ends."""


class FeedStep(StrEnum):
    """The points between two commits of a feed."""

    MARKED = "feed.marked"
    LANDED = "feed.landed"


@dataclass(frozen=True, slots=True)
class FeedResult(JsonRecord):
    """What a feed did, or would do.

    ``fed`` rows were written, ``already`` were fed before, ``finished`` belonged to a feed that
    ended between two commits and had landed. ``replaced`` of them replace rows of the table.
    """

    uri: str
    query_id: str
    fed: int
    already: int
    finished: int
    replaced: int
    version: int
    feed: str | None = None
    dry_run: bool = False


@dataclass
class _Found:
    """The rows of a file as the quarantine has them, by the state of their feed."""

    open: list[dict[str, Any]] = field(default_factory=list)
    doubtful: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    fed: int = 0


def feed_rows(
    port: LanceDatasetPort,
    quarantine: LanceDatasetPort,
    query_id: str,
    mended: Sequence[Mended],
    *,
    replace: bool = False,
    dry_run: bool = False,
    backoff: Backoff | None = None,
    on_step: Callable[[FeedStep], None] = lambda step: None,
) -> FeedResult:
    """Write mended rows into the table; a driver may run beside it.

    :param replace: rows of an upsert may replace rows that the table has now.
    :raises SpecError: the file names a row twice, an unknown row, an unknown column, or has a value
        that does not fit.
    :raises PreconditionError: a row is in the table already, deletes, or cannot be fed.
    :raises HistoryGapError: whether an earlier feed landed cannot be seen any more.
    :raises TransientError: the store refused too often.
    """
    found = _states(quarantine, query_id, mended)
    finished = 0
    for name, rows in found.doubtful.items():
        if _landed(port, name, rows, dry_run=dry_run):
            finished += len(rows)
            if not dry_run:
                _confirm(quarantine, name)
        else:
            found.open += rows
    port = port.latest()
    plan = plan_feed(port, found.open, mended, replace=replace)
    result = FeedResult(
        uri=port.uri,
        query_id=query_id,
        fed=len(plan.ids),
        already=found.fed,
        finished=finished,
        replaced=plan.replaced,
        version=port.version,
        dry_run=dry_run,
    )
    if dry_run or not plan.ids:
        return result
    name = uuid4().hex
    _mark(quarantine, plan.ids, name, port.version, tuple(found.doubtful))
    on_step(FeedStep.MARKED)
    landed = _land(port, plan, name, query_id, backoff or Backoff())
    on_step(FeedStep.LANDED)
    _confirm(quarantine, name)
    return FeedResult(
        port.uri, query_id, len(plan.ids), found.fed, finished, plan.replaced, landed, name
    )


# ------------------------------------------------------------------------------------- quarantine


def _states(port: LanceDatasetPort, query_id: str, mended: Sequence[Mended]) -> _Found:
    """Read the rows of the file in the quarantine.

    :raises SpecError: a row is named twice, or is not there.
    """
    ids = [each.id for each in mended]
    if len(ids) > MOST_ROWS:
        raise SpecError(f"one feed takes {MOST_ROWS:,} rows, the file has {len(ids):,}: divide it")
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise SpecError(f"the file has rows twice: {twice[:3]}")
    if not ids:
        return _Found()
    port = port.latest()
    with reading(port.uri):
        rows = port.dataset.to_table(filter=_among("id", ids)).to_pylist()
    rows = [row for row in rows if row["query_id"] == query_id]
    if unknown := sorted(set(ids) - {row["id"] for row in rows}):
        raise SpecError(
            f"{len(unknown)} rows of the file are not in {port.uri} for query {query_id!r}, for "
            f"example {unknown[0]!r}; export the rows again"
        )
    found = _Found()
    for row in rows:
        if row["fed_at"] is not None:
            found.fed += 1
        elif row["feed"] is not None:
            found.doubtful.setdefault(row["feed"], []).append(row)
        else:
            found.open.append(row)
    return found


def _mark(
    quarantine: LanceDatasetPort,
    ids: Sequence[str],
    name: str,
    version: int,
    superseded: Sequence[str],
) -> None:
    """Give the rows to this feed, in one commit.

    :raises PreconditionError: another feed has taken some of them meanwhile.
    """
    free = "feed IS NULL"
    if superseded:
        free = f"({free} OR {_among('feed', superseded)})"
    dataset = quarantine.latest().dataset
    with reading(quarantine.uri):
        done = dataset.update(
            {"feed": f"'{name}'", "feed_version": str(version)},
            where=f"fed_at IS NULL AND {free} AND {_among('id', ids)}",
        )
    taken = int(done["num_rows_updated"])
    if taken != len(ids):
        raise PreconditionError(
            f"another feed has taken {len(ids) - taken} of {len(ids)} rows meanwhile; nothing was "
            "written into the table. Run the command again: it feeds those that are left"
        )


def _confirm(quarantine: LanceDatasetPort, name: str) -> None:
    now = utc_now().replace("T", " ").removesuffix("+00:00")
    with reading(quarantine.uri):
        quarantine.latest().dataset.update(
            {"fed_at": f"timestamp '{now}'"}, where=f"feed = '{name}'"
        )


def _among(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(_quoted(each) for each in values)})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ------------------------------------------------------------------------------------------- table


def _land(
    port: LanceDatasetPort, plan: FeedPlan, name: str, query_id: str, backoff: Backoff
) -> int:
    """Commit the rows with the feed's name; return the version."""
    from lance.fragment import write_fragments

    layout, base = port.layout, port.version
    rows, keys, lookup = plan.rows, None, None
    if plan.merge_keys:
        keys = rows.select(list(plan.merge_keys))
        if port.dataset.has_stable_row_ids:
            lookup = look_up(port.dataset, keys)
            rows = known_first(rows, lookup)
            keys = rows.select(list(plan.merge_keys))
    with reading(port.uri):
        fragments = list(write_fragments(rows.to_reader(), port.dataset))
    change: Change = (
        Append(fragments) if keys is None else Upsert(fragments, keys, plan.merge_keys, lookup)
    )
    stamp = {_FEED: name, _FEED_OF: query_id, _ROWS: str(rows.num_rows)}
    for attempt in backoff:
        if port.layout != layout:
            raise SchemaMismatchError(
                f"the schema of {port.uri} was changed meanwhile (seen at version {port.version}); "
                "nothing was written. Run the command again"
            )
        try:
            return int(port.commit(change, stamp).version)
        except CommitPreemptedError as error:
            attempt.error = error
            port = port.latest()
            if _find(port, base, _ENDED, name):
                raise PreconditionError(
                    f"another run of this command ended feed {name}; nothing of it was written"
                ) from error
        except CommitStateUnknownError as error:
            attempt.error = error
            port = _bar(port)
            if found := _find(port, base, _FEED, name):
                return found
    raise AssertionError("a backoff ends in its last error")


def _landed(
    port: LanceDatasetPort, name: str, rows: Sequence[Mapping[str, Any]], *, dry_run: bool
) -> bool:
    """Return whether a feed that ended between two commits has landed; if not, it never will."""
    base = int(rows[0]["feed_version"])
    found = _find(port.latest(), base, _FEED, name)
    if found or dry_run:
        return bool(found)
    # The barrier refuses what was sent before it, and its property a driver that sends it again.
    return bool(_find(_bar(port, {_ENDED: name}), base, _FEED, name))


def _bar(port: LanceDatasetPort, properties: Mapping[str, str] | None = None) -> LanceDatasetPort:
    """Move to a version behind which what was sent before can no longer land."""
    for attempt in Backoff():
        try:
            return port.latest().commit(Barrier(), properties)
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            attempt.error = error
    raise AssertionError("a backoff ends in its last error")


def _find(port: LanceDatasetPort, after: int, word: str, name: str) -> int | None:
    """Return the newest version whose transaction has a property with a feed's name.

    :raises HistoryGapError: a version that may have it was cleaned up.
    """
    for version, properties in versions_of(port, after):
        if properties is None:
            raise HistoryGapError(
                f"whether feed {name} landed in {port.uri} cannot be seen: version {version} was "
                f"cleaned up, and maybe others after {after}. Look for its rows in the table. If "
                "they are there, set fed_at of the rows with this feed in the quarantine; if not, "
                "set their feed to null; both with lance.dataset(...).update(...)"
            )
        if properties.get(word) == name:
            return version
    return None
