"""An epoch's rows divided by route, on the driver or by executors, and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather
from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.failures import named_by_worker
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask

__all__ = ["ROUTE_COLUMN", "RouteTask", "RouteWriter"]

ROUTE_COLUMN = "__lance_route"
"""The column that holds the route of a row as text; it never reaches a dataset."""


@dataclass(frozen=True)
class RouteTask:
    """What an executor needs to write a partition that is sorted by route."""

    tasks: Mapping[str, WriteTask]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of each route's task, with the route."""
        slices = (each for batch in batches for each in _slices(pa.Table.from_batches([batch])))
        for route, run in groupby(slices, key=itemgetter(0)):
            if route not in self.tasks:
                continue  # it has this epoch
            rows = (batch for _, table in run for batch in table.to_batches())
            for message in self.tasks[route](rows):
                yield message.append_column("route", pa.array([route]))


def _slices(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Divide rows that are sorted by route."""
    ends = pc.run_end_encode(rows.column(ROUTE_COLUMN).combine_chunks())
    start = 0
    for route, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield route, rows.slice(start, end - start).drop_columns([ROUTE_COLUMN])
        start = end


class RouteWriter(EpochWriter):
    """Writes an epoch into the datasets of its routes: small ones through the driver."""

    def divided(self, df: DataFrame) -> tuple[list[str], dict[str, pa.Table] | None, DataFrame]:
        """Return the routes of an epoch, and the rows of each if the driver has them.

        Otherwise the rows are kept by the executors, sorted by route; free them afterwards.

        :raises RowsRefusedError: a row has no route.
        """
        rows = self.collect(df)
        if rows is not None:
            order = pc.sort_indices(rows, sort_keys=[(ROUTE_COLUMN, "ascending")])
            tables = dict(_slices(rows.take(order))) if rows.num_rows else {}
            return _checked(tables), tables, df
        kept = df.repartition(F.col(ROUTE_COLUMN)).sortWithinPartitions(ROUTE_COLUMN).persist()
        found = [row[0] for row in kept.select(ROUTE_COLUMN).distinct().collect()]
        return _checked(found), None, kept

    def on_executors(
        self, kept: DataFrame, tasks: Mapping[str, WriteTask], datasets: Mapping[str, Any]
    ) -> dict[str, CollectedFragments]:
        """Write the rows that the executors keep, and return what each route got."""
        try:
            task, columns = RouteTask(tasks), f"{MESSAGE_SCHEMA}, route STRING"
            messages = self._with_schema(kept).mapInArrow(task, columns).collect()
        except PythonException as error:
            raise named_by_worker(str(error)) or error from error
        sent: dict[str, list[Any]] = {}
        for message in messages:
            sent.setdefault(message.route, []).append(message)
        return {route: gather(each, tasks[route], datasets[route]) for route, each in sent.items()}


def _checked(routes: Iterable[str | None]) -> list[str]:
    found = set(routes)
    if None in found:
        raise RowsRefusedError(
            "routeBy: the value is null in some rows, so they have no dataset to go to. Filter "
            "them in sql, or give them a value; nothing of this epoch was committed"
        )
    return sorted(route for route in found if route is not None)
