"""How a driver looks after its own tables, in a thread beside the epochs.

A turn compacts what the epochs have added, then removes versions that nobody needs. It runs on its
own handle. An append never conflicts with it and never waits. An upsert and an overwrite do
conflict with a compaction: they wait for it, at most until one trigger interval after it began.
From then on, the one that commits second commits again. A refresh of indices conflicts, too: it and
a compaction take turns.
"""

from __future__ import annotations

import ctypes
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.tombstones import forget_tombstones
from airflow_provider_lance.maintenance.upkeep import Standing, begin_turn, remove_old_versions
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import Owner, utc_now
from airflow_provider_lance.protocol.sides import TOMBSTONES
from airflow_provider_lance.supervision.heartbeat import Upkeep

__all__ = ["AutoCompaction", "Table", "left_alone"]

log = logging.getLogger(__name__)

_NO_INTERVAL = 5.0
_SHORTEST, _LONGEST = 1.0, 60.0
_BYTES_PER_SECOND = 16 * 1024 * 1024
"""What a slow core rewrites; with the trigger interval, it bounds the work of one compaction."""

_EVERY = 50
"""So many of the newest fragments are always compacted, unless the options say otherwise."""


class Table(NamedTuple):
    """A table that the driver writes: a handle at any version, and the driver's ownership there."""

    port: LanceDatasetPort
    owner: Owner | None
    name: str = ""
    """A side table's; empty for the query's own table."""


class AutoCompaction:
    """Looks after the tables that a driver writes; one turn runs at a time.

    Without ``every``, a table gets a turn once it has grown enough since the last one, whoever took
    it; see :class:`.upkeep.Standing`. With ``every``, all tables get one when the epoch number
    passes a multiple of it, so that short runs get one too; 0 is never.
    """

    def __init__(
        self,
        every: int | None,
        query_id: str,
        *,
        keep: int | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Store the arguments; starts nothing.

        :param keep: the seconds for which the user wants old versions, ``None`` if they do not say.
        :param on_step: called between two side effects; tests end the process there.
        """
        self._every, self._query_id, self._keep = every, query_id, keep
        self._on_step = on_step
        self.done = Upkeep()
        """What this run has done so far, and why it has not done more."""
        self._interval = _NO_INTERVAL
        self._number: int | None = None
        self._standings: dict[str, Standing] = {}
        self._removed: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._compacted = threading.Event()
        self._wait_until = 0.0
        self._given_up = threading.Event()
        self._alone = threading.Lock()

    def use_interval(self, seconds: float) -> None:
        """Set the trigger interval to stay within; 0, for none, means a few seconds."""
        self._interval = seconds or _NO_INTERVAL

    @property
    def running(self) -> bool:
        """Return whether a turn is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def epoch_done(
        self,
        epoch_id: int,
        port: LanceDatasetPort,
        owner: Owner | None,
        sides: Iterable[Table] = (),
    ) -> None:
        """Start a turn if one is due; returns at once.

        :param port: any handle of the dataset; the thread opens the newest version.
        :param owner: the driver's ownership; the thread does nothing once the dataset has another
            owner.
        :param sides: the same of the further tables that the driver writes.
        """
        if self._every == 0 or self.running or self._given_up.is_set():
            return
        tables = self._due(epoch_id, [Table(port, owner), *sides])
        if not tables:
            return
        self._compacted.clear()
        self._wait_until = time.monotonic() + self._interval
        # A daemon thread: a store that hangs must not keep the driver from ending.
        thread = threading.Thread(
            target=self._run, args=(tables,), name="lance-autocompact", daemon=True
        )
        thread.start()
        self._thread = thread

    def _due(self, epoch_id: int, tables: list[Table]) -> list[Table]:
        if self._every is None:
            return [each for each in tables if each.owner is not None and self._has_grown(each)]
        number = (epoch_id + 1) // self._every
        if self._number is None:
            self._number = epoch_id // self._every
        due, self._number = number != self._number, number
        return tables if due else []

    def _has_grown(self, table: Table) -> bool:
        uri, port = table.port.uri, table.port
        if uri not in self._standings:
            try:
                self._standings[uri] = Standing.recorded(port)
            except LanceStreamError:
                self._standings[uri] = Standing()  # the turn says what is wrong with the record
        return self._standings[uri].due(port)

    def give_way(self) -> None:
        """Wait for a running compaction, at most until one trigger interval after it began."""
        if self.running:
            self._compacted.wait(max(0.0, self._wait_until - time.monotonic()))

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        """Keep compactions out meanwhile; a running one is waited for, as long as it may take.

        One that takes longer is not waited for: the dataset refuses the one that commits second.
        """
        mine = self._alone.acquire(timeout=self._budget)
        try:
            yield
        finally:
            if mine:
                self._alone.release()

    @property
    def _budget(self) -> float:
        """Return for how many seconds a compaction begins further work."""
        return min(max(self._interval, _SHORTEST), _LONGEST)

    def end(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a running turn; after that it begins nothing further."""
        if self._thread is not None:
            self._thread.join(seconds)
        self._given_up.set()
        if self.running:
            log.warning("A compaction is still running. query_id=%s", self._query_id)

    def _run(self, tables: list[Table]) -> None:
        try:
            with self.kept_out():
                over = time.monotonic() + self._budget
                cleaning = [each for each in tables if self._guarded(self._compact, each, over)]
            self._compacted.set()
            for table in cleaning:
                if not self._given_up.is_set():
                    self._guarded(self._clean, table)
        finally:
            self._compacted.set()
            _release_unused_memory()

    def _guarded(self, step: Callable[..., bool], table: Table, *arguments: Any) -> bool:
        """Do one step for one table; an error is logged and told, as the stream continues."""
        done = False
        try:
            done = step(table, *arguments)
            self._standings[table.port.uri] = Standing.of(table.port.latest())
        except LanceStreamError as error:
            log.warning("Not compacted. query_id=%s error=%s", self._query_id, error)
            self._tell(table, str(error))
        except BaseException as error:  # a panic of Lance's is not an Exception
            log.exception("Not compacted. query_id=%s", self._query_id)
            self._tell(table, repr(error))
        return done

    def _tell(self, table: Table, why: str) -> None:
        """Record why a turn did not do all; the next is due when the table has grown again."""
        self._standings[table.port.uri] = Standing.of(table.port)
        why = f"side table {table.name!r}: {why}" if table.name else why
        self.done = replace(self.done, why=why, why_at=utc_now())

    def _compact(self, table: Table, over: float) -> bool:
        """Take the turn and compact; return whether versions are to be removed."""
        began, port = time.monotonic(), table.port.latest()
        held = decode_query(port.config, self._query_id, port.version).owner
        if table.owner is None or held != table.owner:
            log.info("Not compacted: the query has another owner. query_id=%s", self._query_id)
            return False
        turn = begin_turn(port, self._query_id, self.done.versions_removed)
        if turn is None:
            log.info("Not compacted: it is another query's turn. query_id=%s", self._query_id)
            return False
        port, cleans = turn
        self._on_step("turn.begun")
        fragments = [each.metadata for each in port.dataset.get_fragments()]
        most_bytes = int((over - began) * _BYTES_PER_SECOND)
        target = MaintenanceOptions().target_rows(port.config)
        excluded = left_alone(fragments, self._every or _EVERY, most_bytes, target)
        done = compact(
            port,
            {"excluded_fragment_ids": excluded} if excluded else {},
            is_over=lambda: self._given_up.is_set() or time.monotonic() >= over,
        )
        self._on_step("turn.compacted")
        log.info(
            "Compacted. query_id=%s removed=%d added=%d conflicts=%d left=%d ms=%.0f",
            self._query_id,
            done.fragments_removed,
            done.fragments_added,
            done.conflicts,
            done.left,
            (time.monotonic() - began) * 1000,
        )
        if done.fragments_removed:
            self.done = self.done.compacted(done.fragments_removed, done.fragments_added)
        return cleans

    def _clean(self, table: Table) -> bool:
        """Remove old versions, and tombstones that may be forgotten."""
        began, port = time.monotonic(), table.port.latest()
        if table.name == TOMBSTONES:
            forget_tombstones(port)
        cleaned = remove_old_versions(port, self._keep, port.storage_options)
        self._on_step("turn.cleaned")
        log.info(
            "Old versions removed. query_id=%s versions=%d bytes=%d ms=%.0f",
            self._query_id,
            cleaned.versions,
            cleaned.bytes,
            (time.monotonic() - began) * 1000,
        )
        self.done = self.done.cleaned(cleaned.versions, cleaned.bytes)
        for warning in cleaned.warnings:
            log.warning("%s query_id=%s", warning, self._query_id)
            self._tell(table, warning)
        return True


def _release_unused_memory() -> None:
    """Return freed memory to the system, as far as the C library can.

    A compaction holds its fragments in memory. glibc keeps what they took, in one arena for each of
    Lance's threads. pyarrow's ``release_unused`` does not reach them (seen on pyarrow 26.0.1).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def left_alone(
    fragments: Sequence[Any], every: int, most_bytes: int, target_rows: int = 1024 * 1024
) -> list[int]:
    """Return the ids of the fragments that a run does not touch: all but some of the newest.

    The newest ``every`` are new since the last run. Going back from them, a fragment with more rows
    than all newer ones together ends the selection. So a row is rewritten only as often as the
    dataset doubles, not in every run. Lance's own bounds cannot do this: they count whole tasks,
    and a first task above the bound makes an empty plan (seen on pylance 14.0.2).

    If older fragments are small and many, as in a table that was not compacted before, as many of
    them are taken, without those that an earlier run has merged.

    :param fragments: `FragmentMetadata` in the dataset's order; at most four times ``every`` of
        them are taken of either kind.
    :param most_bytes: how many bytes of data files are taken.
    :param target_rows: what a fragment has that Lance leaves alone.
    """
    rows = size = 0
    taken = set[int]()
    for fragment in reversed(fragments):
        size += _size(fragment)
        heavy = len(taken) >= every and fragment.physical_rows > rows
        if heavy or len(taken) == 4 * every or size > most_bytes:
            size -= _size(fragment)
            break
        rows += fragment.physical_rows
        taken.add(fragment.id)
    older = fragments[: len(fragments) - len(taken)]
    small = [each for each in older if each.physical_rows < target_rows]
    if len(small) > 4 * every:
        usual = 4 * statistics.median_low(each.physical_rows for each in small)
        backlog = [each for each in small if each.physical_rows <= usual]
        for fragment in backlog[: -4 * every - 1 : -1]:
            size += _size(fragment)
            if size > most_bytes:
                break
            taken.add(fragment.id)
    return [each.id for each in fragments if each.id not in taken]


def _size(fragment: Any) -> int:
    return sum(file.file_size_bytes or 0 for file in fragment.files)
