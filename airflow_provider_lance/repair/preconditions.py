"""The preconditions of a repair, read at the newest version, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from airflow_provider_lance.exceptions import (
    DatasetRestoredError,
    HistoryGapError,
    ProtocolVersionError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.codec import (
    decode_query,
    query_ids,
)
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    Owner,
    QueryState,
    Watermark,
)
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.repair.liveness import refuse_live_driver, seen_from_here
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["Preconditions", "check_preconditions", "gap_error", "known_query", "refuse_undone"]


class Preconditions:
    """One query at one version: its owner, and what is proven of its epochs."""

    def __init__(
        self,
        port: DatasetPort,
        state: QueryState,
        owner: Owner,
        storage: Mapping[str, str] | None,
        connection_arguments: str = "",
    ) -> None:
        self.port, self.state, self.owner = port, state, owner
        self._storage, self._connection_arguments = storage, connection_arguments
        self._drivers: tuple[DriverObservation, ...] = ()

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.state.query_id

    def command(self, *verb: str, options: Sequence[str] = ()) -> str:
        """Return the command to type for this query."""
        return _typed(
            *verb,
            uri=self.port.uri,
            query=self.query_id,
            options=options,
            connection_arguments=self._connection_arguments,
        )

    def watermark(self) -> Watermark:
        """Return the exact watermark at this version.

        :raises DatasetRestoredError: an older version was restored and removed epochs.
        """
        mark = exact_watermark(self.port, self.query_id)
        refuse_undone(self.port, mark)
        return mark

    def refuse_live_driver(
        self, location: str, *others: str, proven_dead: bool, command: str
    ) -> None:
        """Raise unless every visible driver has exited, including those known by reports.

        :param location: the owner's checkpoint, beside which drivers write their reports.
        :param others: checkpoints beside which other drivers may have written theirs.
        :raises DriverAliveError: a driver is alive, or its state is unknown.
        :raises SpecError: the reports' location cannot be opened from here.
        :raises StorageUnavailableError: the store of the reports did not answer or refused.
        """
        places = dict.fromkeys((location, *others))
        reports = [self._reports(each, optional=proven_dead) for each in places]
        self._drivers = seen_from_here(self.state, *reports)
        refuse_live_driver(self.state, self._drivers, proven_dead=proven_dead, command=command)

    @property
    def heard(self) -> int:
        """Return the last watermark that the owner's own launch reported, -1 if none.

        A watermark reported before its claim may belong to an older generation.
        """
        own = [each for each in self._drivers if each.is_of(self.owner.driver)]
        said = [each.heartbeat.watermark for each in own if each.heartbeat and each.heartbeat.token]
        said += [each.summary.watermark for each in own if each.summary]
        return max((each for each in said if each is not None), default=NO_EPOCH)

    def _reports(self, location: str, *, optional: bool) -> ArrowFiles | None:
        try:
            files = open_files(report_location(location), self._storage)
            files.names("")
        except (SpecError, StorageUnavailableError):
            if optional:
                return None
            raise
        return files

    def checkpoint(self, location: str) -> Checkpoint:
        """Read the checkpoint's current state.

        :raises SpecError: the location cannot be opened from here.
        :raises CheckpointCorruptError: its id cannot be read.
        :raises StorageUnavailableError: the store did not answer or refused.
        """
        return read_checkpoint(location, open_files(location, self._storage), with_ends=True)

    def recorded_checkpoint(self, location: str, mark: Watermark) -> Checkpoint:
        """Read the checkpoint that the watermark belongs to: only it can bridge a gap.

        :raises HistoryGapError: there is another checkpoint, or none, or an older copy.
        """
        found, recorded = self.checkpoint(location), self.owner.driver
        if found.id == recorded.checkpoint_id and self.heard <= found.planned:
            return found
        there = f"id {found.id}" if found.id else "no checkpoint"
        if found.id == recorded.checkpoint_id:
            there = f"an older copy, which has planned no epoch after {found.planned}"
        told = f" Its driver told of epoch {self.heard} last." if self.heard > NO_EPOCH else ""
        raise HistoryGapError(
            f"{mark.missing} of the versions of {self.port.uri} after {self.state.folded_version} "
            f"were cleaned up, and only checkpoint {recorded.checkpoint_id} of query "
            f"{self.query_id!r}, recorded at {recorded.checkpoint_location}, can tell which epochs "
            f"they held; {location} has {there}.{told} Name the place where it is now with "
            "--checkpoint, or give the query up: a new queryId, or onCheckpointChange=newGeneration"
        )

    def driver(self, what: str, by: str) -> Driver:
        """Return the owner's driver with a new run id.

        Everything else stays the dead driver's. So a task that supervises its launch still sees a
        driver that has exited, not a query that was taken over. A repair that is killed in the
        middle leaves an owner that the same process proves dead. The run id is unique, since owners
        are compared by all their fields.
        """
        return replace(self.owner.driver, run_id=f"{what} by {by or 'nobody'} {uuid4().hex[:8]}")


def check_preconditions(
    port: DatasetPort,
    query_id: str,
    storage_options: Mapping[str, str] | None,
    connection_arguments: str,
) -> Preconditions:
    """Open the newest version and read the query there.

    :param connection_arguments: what a command needs to reach the store, for the messages.
    :raises SpecError: the dataset does not know the query.
    :raises ProtocolVersionError: another tool's query, or a newer protocol.
    """
    port = port.latest()
    state = known_query(port, query_id)
    assert state.owner is not None
    return Preconditions(port, state, state.owner, storage_options, connection_arguments)


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
    mark: Watermark,
    in_doubt: int | None = None,
    *,
    connection_arguments: str = "",
) -> HistoryGapError:
    """Return the error for a watermark that is not proven."""
    query = state.query_id
    how = {"uri": port.uri, "query": query, "connection_arguments": connection_arguments}
    seen = (
        f"{mark.missing or 'some'} of the versions of {port.uri} after {state.folded_version} were "
        f"cleaned up, so epoch {mark.epoch} is only a lower bound of query {query!r}'s watermark"
    )
    if in_doubt is None:
        return HistoryGapError(
            f"{seen}. Spark's commit log may prove more: type {_typed('release', **how)}"
        )
    named = ["--epoch", str(in_doubt), "--after-version", str(state.folded_version)]
    resolve = _typed("resolve", "gap", options=named, **how)
    return HistoryGapError(
        f"{seen}, and epoch {in_doubt} was planned. Look whether "
        f"its rows are in the dataset, then type {resolve} --committed if they are, or --missing "
        "if they are not"
    )


def _typed(
    *verb: str, uri: str, query: str, options: Sequence[str] = (), connection_arguments: str = ""
) -> str:
    return command_line(
        *verb, uri, query, *options, "--yes", connection_arguments=connection_arguments
    )


def refuse_undone(port: DatasetPort, watermark: Watermark) -> None:
    """Raise if rows of epochs are gone, or may be, although history has or had the epochs.

    :raises DatasetRestoredError: names the versions to inspect.
    """
    if watermark.undone_by is None or not watermark.may_lack_epochs:
        return
    version, restored = watermark.undone_by
    epochs = [stamp.epoch_id for stamp in watermark.undone]
    took = f"took epochs {epochs[0]} to {epochs[-1]} with it" if epochs else "may have taken epochs"
    raise DatasetRestoredError(
        f"version {version} of {port.uri} brought version {restored} back, and {took}: nothing is "
        "folded over that. Start the stream: it says whether rows are gone, and both ways out"
    )
