"""The preconditions of a repair, read at the newest version, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Required, TypedDict
from uuid import uuid4

from airflow_provider_lance.diagnostics.collect_drivers import collect_drivers, with_owner
from airflow_provider_lance.exceptions import (
    DatasetRestoredError,
    DriverAliveError,
    HistoryGapError,
    ProtocolVersionError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.decoding import LARGEST
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    ByHand,
    Driver,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
)
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.liveness import DriverObservation, Sign

__all__ = ["Preconditions", "RepairOptions", "gap_error", "known_query", "named", "refuse_undone"]

_YOUNG_SECONDS = 600.0
"""The age up to which a heartbeat of a driver that is not visible refuses a repair."""


class RepairOptions(TypedDict, total=False):
    """What every repair of one query's ownership can be given."""

    by: Required[str]
    """Who asks, for the owner record."""
    storage_options: Mapping[str, str] | None
    connection_arguments: str
    """What a printed command needs to reach the store."""
    proven_dead: bool
    """The caller knows by other means that no driver of the query runs. A process that is seen
    alive still refuses."""
    dry_run: bool
    """Write nothing; the result says what would be written."""
    backoff: Backoff | None


class Preconditions:
    """One query at one version: its owner, what is proven of its epochs, and the repair's options.

    :ivar dry_run: whether nothing may be written.
    """

    def __init__(self, port: DatasetPort, query_id: str, options: RepairOptions) -> None:
        """Open the newest version and read the query there.

        :raises SpecError: the dataset does not know the query.
        :raises ProtocolVersionError: another tool's query, or a newer protocol.
        """
        self.port = port.latest()
        self.state = known_query(self.port, query_id)
        assert self.state.owner is not None
        self.owner = self.state.owner
        self.by = options["by"]
        self.dry_run = options.get("dry_run", False)
        self.backoff = options.get("backoff") or Backoff()
        self._proven_dead = options.get("proven_dead", False)
        self._storage = options.get("storage_options")
        self._connection_arguments = options.get("connection_arguments", "")
        self._drivers: tuple[DriverObservation, ...] = ()

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.state.query_id

    def command(self, *verb: str, options: Sequence[str] = ()) -> str:
        """Return the command to type for this query."""
        return _typed(self.port.uri, self.query_id, self._connection_arguments, *verb, *options)

    def gap_error(self, watermark: Watermark, in_doubt: int | None = None) -> HistoryGapError:
        """Return the error for a watermark that is not proven."""
        return gap_error(self.port, self.state, watermark, in_doubt, self._connection_arguments)

    def watermark(self) -> Watermark:
        """Return the exact watermark at this version.

        :raises DatasetRestoredError: an older version was restored and removed epochs.
        """
        watermark = exact_watermark(self.port, self.query_id)
        refuse_undone(self.port, watermark)
        return watermark

    def refuse_live_driver(self, location: str, *others: str, verb: Sequence[str]) -> None:
        """Raise unless every visible driver has exited, including those known by reports.

        Only what is observed counts: a process of this host that has exited, or a driver's own
        summary. An old heartbeat proves nothing, and a recent one refuses.

        :param location: the owner's checkpoint, beside which drivers write their reports.
        :param others: checkpoints beside which other drivers may have written theirs.
        :param verb: the command to type, with its options, once the driver is proven dead by other
            means.
        :raises DriverAliveError: a driver is alive, or its state is unknown.
        :raises SpecError: the reports' location cannot be opened from here.
        :raises StorageUnavailableError: the store of the reports did not answer or refused.
        """
        reports = [self._reports(each) for each in dict.fromkeys((location, *others))]
        now = datetime.now(UTC)
        seen = [collect_drivers(each, self.query_id, now) if each else () for each in reports]
        own = with_owner(seen[0], self.state, reports[0], now)
        self._drivers = own + tuple(chain.from_iterable(seen[1:]))
        for driver in sorted(self._drivers, key=lambda each: not each.alive):
            alive = self._is_alive(driver)
            if alive is True or (alive is None and not self._proven_dead):
                raise self._refusal(driver, alive, verb)

    def _is_alive(self, driver: DriverObservation) -> bool | None:
        """Return whether a driver may still write; ``None`` if that is unknown."""
        own = driver.is_of(self.owner.driver)
        holds = own and self.owner.state is OwnerState.ACTIVE and not self._released_before()
        if own and not holds:
            return False  # it released the query
        if driver.summary and driver.summary.released:
            return False  # it did, and a restored version brought its owner record back
        seen = driver.liveness(_YOUNG_SECONDS, process_first=holds)
        if seen.shown_by is Sign.HEARTBEAT:
            return None
        if seen.alive is None and not holds:
            return False  # a launch that owns nothing, and has been silent for long
        return seen.alive

    def _released_before(self) -> bool:
        """Return whether a restored version brought back the record of an owner that released."""
        undone_by = exact_watermark(self.port, self.query_id, spark_done=LARGEST).undone_by
        before = self.port.at(undone_by[0] - 1) if undone_by else None
        try:
            last = before and decode_query(before.config, self.query_id, before.version).owner
        except ProtocolVersionError:
            return False  # somebody wrote over the record
        return bool(last and last.token == self.owner.token and last.state is OwnerState.RELEASED)

    def _refusal(
        self, driver: DriverObservation, alive: bool | None, verb: Sequence[str]
    ) -> DriverAliveError:
        own = driver.is_of(self.owner.driver)
        who = f"launch {driver.launch_id}"
        if own:
            who = f"the owner (token {self.owner.token}, {named(self.owner)})"
        process = driver.process
        where = (
            f"pid {process.pid} on {process.host}" if process else "a process that is not recorded"
        )
        last = f"last heartbeat {driver.heartbeat.time}" if driver.heartbeat else "no heartbeat"
        seen = f"{who} of query {self.query_id!r}, {where}, {last},"
        if alive is None:
            typed = self.command(*verb, options=["--proven-dead"])
            return DriverAliveError(
                f"{seen} may be alive: that cannot be seen from here. Run this on that host, or "
                f"make sure that this process has exited and type: {typed}"
            )
        after = "which releases the query" if own else "or it takes the query over"
        return DriverAliveError(
            f"{seen} is alive. Ask it to stop, {after}; or end that process first"
        )

    @property
    def heard(self) -> int:
        """Return the last watermark that the owner's own launch reported, -1 if none."""
        own = [each for each in self._drivers if each.is_of(self.owner.driver)]
        return max((each.watermark for each in own), default=NO_EPOCH)

    def _reports(self, location: str) -> ArrowFiles | None:
        try:
            files = open_files(report_location(location), self._storage)
            files.names("")
        except (SpecError, StorageUnavailableError):
            if self._proven_dead:
                return None
            raise
        return files

    def checkpoint(self, location: str) -> Checkpoint:
        """Read the checkpoint's current state.

        :raises SpecError: the location cannot be opened from here.
        :raises CheckpointCorruptError: its id cannot be read.
        :raises StorageUnavailableError: the store did not answer or refused.
        """
        files = open_files(location, self._storage)
        return read_checkpoint(location, files, with_ends=True).with_changed_entries()

    def recorded_checkpoint(self, location: str, watermark: Watermark) -> Checkpoint:
        """Read the checkpoint that the watermark belongs to: only it can bridge a gap.

        :raises HistoryGapError: there is another checkpoint, or none, or an older copy.
        """
        found, recorded = self.checkpoint(location), self.owner.driver
        if found.id == recorded.checkpoint_id and self.heard <= found.planned:
            return found
        there = f"id {found.id}" if found.id else "no checkpoint"
        if found.id == recorded.checkpoint_id:
            there = f"an older copy, which has planned no epoch after {found.planned}"
        reported = f" Its driver last reported epoch {self.heard}." if self.heard > NO_EPOCH else ""
        raise HistoryGapError(
            f"{watermark.missing} of the versions of {self.port.uri} after "
            f"{self.state.folded_version} were cleaned up, and only checkpoint "
            f"{recorded.checkpoint_id} of query {self.query_id!r}, recorded at "
            f"{recorded.checkpoint_location}, says which epochs they held; {location} "
            f"has {there}.{reported} Name its present location with --checkpoint, or give the "
            "query up: a new queryId, or onCheckpointChange=newGeneration"
        )

    def driver(self, what: str) -> Driver:
        """Return the owner's driver with a new run id.

        Everything else stays the dead driver's. So a task that supervises its launch still sees a
        driver that has exited, not a query that was taken over. A repair that is killed in the
        middle leaves an owner that the same process proves dead. The run id is unique, since owners
        are compared by all their fields.
        """
        record = ByHand(what, self.by or "nobody")
        return replace(self.owner.driver, run_id=record.run_id(uuid4().hex[:8]))


def known_query(port: DatasetPort, query_id: str) -> QueryState:
    """Read a query that has an owner record.

    :raises SpecError: the dataset does not know the query.
    :raises ProtocolVersionError: another tool's query, or a newer protocol.
    """
    state = decode_query(port.config, query_id, port.version)
    if state.owner is not None:
        return state
    if state.known:
        raise ProtocolVersionError(
            f"query {query_id!r} has epoch watermark {state.watermark} and no owner record in "
            f"{port.uri}: another tool wrote it, and nothing of it is changed"
        )
    known = ", ".join(map(repr, query_ids(port.config))) or "none"
    raise SpecError(
        f"{port.uri} at version {port.version} has no trace of query {query_id!r}; the queries it "
        f"knows: {known}"
    )


def gap_error(
    port: DatasetPort,
    state: QueryState,
    watermark: Watermark,
    in_doubt: int | None = None,
    connection_arguments: str = "",
) -> HistoryGapError:
    """Return the error for a watermark that is not proven."""
    query, typed = state.query_id, partial(_typed, port.uri, state.query_id, connection_arguments)
    seen = (
        f"{watermark.missing or 'some'} of the versions of {port.uri} after "
        f"{state.folded_version} were cleaned up, so epoch {watermark.epoch} is only a lower bound "
        f"of query {query!r}'s watermark"
    )
    if in_doubt is None:
        return HistoryGapError(
            f"{seen}. Spark's commit log may prove more: type {typed('release')}"
        )
    after = str(state.folded_version)
    resolve = typed("resolve", "gap", "--epoch", str(in_doubt), "--after-version", after)
    return HistoryGapError(
        f"{seen}, and epoch {in_doubt} was planned. Check whether its rows are in the dataset, "
        f"then type {resolve} --committed if they are, or --missing if they are not"
    )


def _typed(uri: str, query: str, connection_arguments: str, *words: str) -> str:
    """Return a command: the words before the first option are its verb."""
    options = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return command_line(
        *words[:options],
        uri,
        query,
        *words[options:],
        "--yes",
        connection_arguments=connection_arguments,
    )


def refuse_undone(port: DatasetPort, watermark: Watermark) -> None:
    """Raise if rows of epochs are gone, or may be, although history has or had the epochs.

    :raises DatasetRestoredError: names the versions to inspect.
    """
    if watermark.undone_by is None or not watermark.may_lack_epochs:
        return
    version, restored = watermark.undone_by
    epochs = [stamp.epoch_id for stamp in watermark.undone]
    took = f"removed epochs {epochs[0]} to {epochs[-1]}" if epochs else "may have removed epochs"
    raise DatasetRestoredError(
        f"version {version} of {port.uri} restored version {restored} and {took}: nothing is "
        "folded over that. Bring them back with lance-stream resolve restore --bring-back, or "
        "start the stream, whose error says what is missing"
    )


def named(owner: Owner) -> str:
    """Return an owner's name: its run, or its launch before Spark has named the run."""
    driver = owner.driver
    return f"run {driver.run_id}" if driver.run_id else f"launch {driver.launch_id or 'unknown'}"
