"""One stream, many datasets: an epoch's rows divided by route, each route committed by itself.

The query's own table, the *home*, records what went where, and commits last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError, SpecError
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.model import EndOffsets, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.watermark import versions_of
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather_rows
from airflow_provider_lance.spark.columns import folding
from airflow_provider_lance.spark.epoch_runner import EpochRunner
from airflow_provider_lance.spark.route_writer import ROUTE_COLUMN, RouteWriter
from airflow_provider_lance.spark.run_metrics import EpochReport
from airflow_provider_lance.spark.streaming_plan import quoted
from airflow_provider_lance.spark.target import open_target, open_with_schema
from airflow_provider_lance.spark.writer import INLINE_BYTES, WriteTask
from airflow_provider_lance.spec.routes import ROUTE, route_name
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["HOME", "RouteRunner", "open_home"]

HOME = pa.schema(
    {
        "epoch": pa.int64(),
        "route": pa.string(),
        "uri": pa.string(),
        "rows": pa.int64(),
        "deletes": pa.int64(),
        "version": pa.int64(),
    }
)
"""The home's columns: what each epoch sent to each route, and the version that it made there."""

_TEXT_TYPES = (StringType, ByteType, ShortType, IntegerType, LongType, DateType, BooleanType)
"""Types that have one text for each value, whatever the session's settings."""

_MOST_ROUTES = 1000
"""The most datasets of a stream by default: each is opened at a start."""

_ALL_INLINE_BYTES = 256 * 1024 * 1024
"""The most that all routes together send to the driver as rows."""


def open_home(df: DataFrame, options: SinkOptions) -> LanceDatasetPort:
    """Open the home, or create it if the options say so; check the column of the routes.

    :raises SpecError: the stream has no such column, or it has a type without one text per value.
    :raises SchemaMismatchError: the dataset has other columns than a home.
    :raises DatasetNotFoundError, StorageUnavailableError: as :func:`.target.open_target`.
    """
    assert options.route_by is not None
    if options.route_by not in df.columns:
        raise SpecError(f"routeBy={options.route_by!r} is not a column of the stream: {df.columns}")
    kind = df.schema[options.route_by].dataType
    if not isinstance(kind, _TEXT_TYPES):
        raise SpecError(
            f"routeBy={options.route_by!r} is {kind.simpleString()}: route by a string, an "
            "integer, a date or a boolean; cast it in sql"
        )
    folded = folding(df)
    if taken := [name for name in df.columns if folded(name) == ROUTE_COLUMN]:
        raise SchemaMismatchError(
            f"column {taken[0]!r} has the name under which routeBy is evaluated: rename it in sql, "
            "with AS"
        )
    port = open_with_schema(HOME, replace(options, change_feed=False))
    if port.dataset.schema != HOME:
        raise SchemaMismatchError(
            f"{options.uri} is not the home of a stream with routeBy: it has the columns "
            f"{port.dataset.schema.names}. With routeBy, uri is a small dataset of its own that "
            "records what went where; give it another place"
        )
    return port


@dataclass(frozen=True)
class _Sent:
    """What one epoch sent to one route."""

    route: str
    uri: str
    rows: int | None
    """``None`` if an earlier attempt sent them, and the version that says how many is gone."""
    deletes: int | None = None
    fragments: int = 0
    bytes: int = 0
    version: int | None = None
    checks: RowChecks = RowChecks()


class RouteRunner(EpochRunner):
    """Writes each micro-batch into the datasets of its routes, and records it in the home."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Store the arguments, as :class:`.EpochRunner`; no I/O."""
        super().__init__(*arguments, **named)
        self._routed = RouteWriter(self._writer.task)
        self._schemas: dict[str, pa.Schema] = {}

    def _fit(self, df: DataFrame, plan: EpochPlan) -> None:
        """Compare the columns with each route's again, if they are not those of the last epoch."""
        if not self._remembered.apply_to(df):
            self._schemas.clear()

    def _write_and_commit(
        self, df: DataFrame, plan: EpochPlan, ends: EndOffsets | None
    ) -> EpochReport:
        started_at, began, epoch_id = utc_now(), time.perf_counter(), plan.epoch_id
        before = time.monotonic()
        routes, tables, kept = self._routed.divided(self._with_route(df))
        try:
            self._refuse_too_many(routes)
            plans = {route: self._begin(route, epoch_id, df) for route in routes}
            open_plans = {route: each for route, each in plans.items() if each}
            tasks = {route: self._task_of(route, len(routes)) for route in open_plans}
            datasets = {route: self._dataset(each) for route, each in open_plans.items()}
            # All are written before the first commit: a row that is refused stops the whole epoch.
            if tables is None:
                written = self._routed.on_executors(kept, tasks, datasets) if tasks else {}
            else:
                written = {
                    route: gather_rows(tables[route], task, datasets[route])
                    for route, task in tasks.items()
                }
        finally:
            if tables is None:
                kept.unpersist()
        lost = self._confirmed(epoch_id)
        write_ms = (time.perf_counter() - began) * 1000
        sent = [
            self._commit(route, each, written[route], started_at, ends)
            if each
            else self._sent_before(route, epoch_id)
            for route, each in plans.items()
        ]
        self._routed.note(before, *_size(sent))
        return self._record(plan, sent, lost, started_at=started_at, write_ms=write_ms, ends=ends)

    def _record(
        self,
        plan: EpochPlan,
        sent: list[_Sent],
        lost: RowChecks,
        *,
        started_at: str,
        write_ms: float,
        ends: EndOffsets | None,
    ) -> EpochReport:
        """Commit to the home what went where; it has the epoch once every route has it."""
        port: Any = plan.port
        checks = sum((each.checks for each in sent), lost)
        if not sent and not lost:
            plan.finish(ends)
            return EpochReport(plan.epoch_id, None, write_ms=write_ms, version=port.version)
        self._sides.claim(plan.epoch_id)
        port = plan.port
        columns = [[plan.epoch_id] * len(sent)]
        columns += [[getattr(each, name) for each in sent] for name in HOME.names[1:]]
        record = pa.table(columns, schema=HOME)
        rows, deletes = (sum(getattr(each, n) or 0 for each in sent) for n in ("rows", "deletes"))
        size = sum(each.bytes for each in sent)
        epoch = Epoch(
            epoch_id=plan.epoch_id,
            mode=OutputMode.APPEND,
            fragments=self._writer.task.write(record.to_reader(), port.dataset),
            rows=rows,
            deletes=deletes,
            bytes=size,
            started_at=started_at,
            ends=ends,
            checks=checks,
        )
        result = plan.commit(epoch)
        return EpochReport(
            epoch_id=plan.epoch_id,
            decision=result.decision,
            fragments=1 + sum(each.fragments for each in sent),
            write_ms=write_ms,
            commit_ms=result.commit_ms,
            version=result.version,
            checks=checks,
            rows=rows,
            deletes=deletes,
            bytes=size,
        )

    def _with_route(self, df: DataFrame) -> DataFrame:
        """Add the route as text, and the values of all conditions."""
        assert self._options.route_by is not None
        columns = [F.col(quoted(name)) for name in df.columns]
        route = F.col(quoted(self._options.route_by)).cast("string").alias(ROUTE_COLUMN)
        return df.select(*columns, *self._conditions(), route)

    def _refuse_too_many(self, routes: list[str]) -> None:
        names = {name for name in self._sides.sessions if name.startswith(ROUTE)}
        new = {route_name(route) for route in routes} - names
        most = self._options.max_routes or _MOST_ROUTES
        if new and len(names) + len(new) > most:
            raise RowsRefusedError(
                f"routeBy={self._options.route_by!r}: this epoch has rows for {len(new)} new "
                f"routes, for example {routes[:3]}, beside {len(names)} that exist, and "
                f"maxRoutes is {most}. Nothing of this epoch was committed. Route by a column "
                "with fewer values, or raise maxRoutes"
            )

    def _begin(self, route: str, epoch_id: int, df: DataFrame) -> EpochPlan | None:
        name = route_name(route)
        options = replace(self._options, uri=self._options.route_uri_of(name))
        known = name in self._sides.sessions
        if known and name not in self._schemas:
            options = replace(options, create_if_missing=False)
            self._note_schema(name, open_target(df, options))

        def opened() -> LanceDatasetPort:
            port = open_target(df, options)
            self._note_schema(name, port)
            return port

        return self._sides.begin(name, epoch_id, opened)

    def _note_schema(self, name: str, port: LanceDatasetPort) -> None:
        # Equal schemas are one object: the routes' tasks are pickled together.
        found = port.dataset.schema
        same = (each for each in self._schemas.values() if each.equals(found, check_metadata=True))
        self._schemas[name] = next(same, found)

    def _task_of(self, route: str, routes: int) -> WriteTask:
        name = route_name(route)
        return replace(
            self._writer.task,
            uri=self._options.route_uri_of(name),
            schema=self._schemas[name],
            inline_bytes=min(INLINE_BYTES, _ALL_INLINE_BYTES // routes),
        )

    @staticmethod
    def _dataset(plan: EpochPlan) -> Any:
        port: Any = plan.port
        return port.dataset

    def _commit(
        self,
        route: str,
        plan: EpochPlan,
        written: CollectedFragments,
        started_at: str,
        ends: EndOffsets | None,
    ) -> _Sent:
        version: int | None = None
        if written.rows or written.checks:
            epoch = Epoch(
                epoch_id=plan.epoch_id,
                mode=self._options.commit_mode,
                fragments=written.fragments,
                rows=written.rows,
                deletes=written.deletes,
                bytes=written.bytes,
                started_at=started_at,
                keys=written.keys if written.rows else None,
                lookup=written.lookup,
                merge_keys=self._options.merge_keys,
                ends=ends,
                checks=written.checks,
                digest=self._sides.digest,
            )
            version = plan.commit(epoch).version
        return _Sent(
            route,
            plan.port.uri,
            written.rows,
            written.deletes,
            len(written.fragments),
            written.bytes,
            version,
            written.checks,
        )

    def _sent_before(self, route: str, epoch_id: int) -> _Sent:
        """Return what an earlier attempt sent, as the route's own commit says."""
        port: Any = self._sides.sessions[route_name(route)].port
        query = self._options.query_id
        for version, properties in versions_of(port, 0):
            stamp = decode_stamp(properties or {}, query, version)
            if stamp and stamp.epoch_id == epoch_id:
                return _Sent(
                    route,
                    port.uri,
                    stamp.rows,
                    stamp.deletes,
                    stamp.fragments,
                    stamp.bytes,
                    version,
                    stamp.checks,
                )
            if stamp or properties is None:
                break
        return _Sent(route, port.uri, None)


def _size(sent: list[_Sent]) -> tuple[int, int]:
    """Return the rows that came in, and the bytes that were written."""
    taken = sum(each.checks.dropped + each.checks.quarantined for each in sent)
    return taken + sum(each.rows or 0 for each in sent), sum(each.bytes for each in sent)
