"""Lance as a streaming source: ``spark.readStream.format("lance")``.

    from airflow_provider_lance.spark.source import register_source

    register_source(spark)
    df = spark.readStream.format("lance").load("/data/orders.lance")

Spark runs the reader in one Python process for each query, which plans, and reads in the executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import __version__ as pyspark_version
from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import LANCE, SourceOptions
from airflow_provider_lance.source.position import PositionKeeper
from airflow_provider_lance.source.reader import SourceReader
from airflow_provider_lance.source.slices import CHANGE_COLUMNS, Slice, divide, read_slices
from airflow_provider_lance.spark.compat import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    utc_arrow_schema,
)
from airflow_provider_lance.spark.source_types import cast_batch, spark_schema

__all__ = ["STREAM_FORMAT", "LanceDataSource", "is_supported", "register_source"]

STREAM_FORMAT = "lance_stream"
"""A second name for ``format``: where the jar of Lance's Spark connector is present, ``lance`` is
the connector, which has no streaming read."""

_TASK_BYTES = 16 * 1024 * 1024
_TASK_ROWS = 1_000_000
"""What one task reads at most."""

_CHANGES = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.int64(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def is_supported() -> bool:
    """Return whether this PySpark can bound an epoch of a Python data source; 4.2 and newer can."""
    return hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")


def register_source(
    session: SparkSession,
    storage_options: Mapping[str, str] | None = None,
    *,
    writes_to: str = "",
    checkpoint_location: str = "",
) -> None:
    """Make ``format("lance")`` known to a Spark session, and ``format("lance_stream")``.

    :param storage_options: Lance's options for the stores of the datasets that are read. Spark
        prints the options of a reader; it does not print these.
    :param writes_to: the dataset that the query writes, to be left beside its position.
    :param checkpoint_location: the query's checkpoint, for the same purpose.
    :raises SpecError: this PySpark has no limits of an epoch for Python data sources.
    """
    if not is_supported():
        raise SpecError(
            f"the lance source needs PySpark 4.2 or newer, and this is {pyspark_version}: before "
            "it, Spark does not pass a Python source the start of an epoch, so it cannot bound one"
        )
    # A class that no module holds is pickled by value, its storage options with it.
    bound = {
        "storage_options": dict(storage_options or {}),
        "writes_to": writes_to,
        "checkpoint_location": checkpoint_location,
    }
    for name in (LANCE, STREAM_FORMAT):
        kind = type("BoundLanceDataSource", (LanceDataSource,), bound | {"format_name": name})
        session.dataSource.register(kind)


class LanceDataSource(DataSource):
    """A Lance dataset as Spark sees it.

    :raises SpecError: an option is unknown, wrong, or contradicts another.
    :raises DatasetNotFoundError, StorageUnavailableError: the dataset cannot be opened.
    """

    storage_options: Mapping[str, str] = {}
    writes_to = checkpoint_location = ""
    format_name = LANCE

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.chosen = SourceOptions.spelled(options)
        port = open_dataset(self.chosen.path, self.storage_options)
        self.columns = SourceColumns.of(port, self.chosen.columns)
        taken = sorted({*self.columns.names} & {*CHANGE_COLUMNS})
        if taken and self.chosen.read_change_feed:
            raise SpecError(
                f"{self.chosen.path} has columns {taken}, which readChangeFeed=true adds: name "
                "the columns to read with the option columns"
            )

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return cls.format_name

    def schema(self) -> StructType:
        """Return the dataset's columns, and those of the change feed.

        :raises SchemaMismatchError: Spark has no type for one.
        """
        schema = self.columns.schema
        if self.chosen.read_change_feed:
            schema = pa.schema([*schema, *_CHANGES])
        return spark_schema(schema, self.chosen.path)

    def streamReader(self, schema: StructType) -> LanceStreamReader:
        """Return the reader of one query.

        :raises SpecError: the user gave a schema that is not the dataset's.
        """
        own = self.schema()
        if [(each.name, each.dataType) for each in schema] != [
            (each.name, each.dataType) for each in own
        ]:
            raise SpecError(
                f"the lance source has the columns {own.simpleString()}, and the query gives the "
                f"schema {schema.simpleString()}: leave the schema out, and choose columns with "
                "the option columns"
            )
        keeper = PositionKeeper(
            self.chosen, self.storage_options, self.writes_to, self.checkpoint_location
        )
        return LanceStreamReader(self.columns, schema, keeper)


class _Task(InputPartition):
    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(None)
        self.slices = tuple(slices)


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans epochs in the driver's Python process, and reads them in the executors'."""

    def __init__(
        self,
        columns: SourceColumns,
        schema: StructType,
        keeper: PositionKeeper,
    ) -> None:
        self._options, self._columns, self._keeper = keeper.options, columns, keeper
        self._storage_options = keeper.storage_options
        self._target = utc_arrow_schema(schema)
        self._reader = SourceReader(self._options, columns, self._storage_options)
        self._last: int | None = None
        self._planned: SourceOffset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins; always the same."""
        return NOT_BEGUN.to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of one epoch; Spark asks for everything with ``Trigger.Once``."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the version that is the newest now."""
        self._last = self._reader.newest().version

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return where the next epoch ends; ``start`` if nothing is new."""
        position = SourceOffset.from_json(start)
        unlimited = isinstance(limit, ReadAllAvailable)
        self._planned = self._reader.latest(position, unlimited=unlimited, last=self._last)
        # An epoch begins once those before it are committed.
        self._keeper.reached(self._planned if position == NOT_BEGUN else position)
        if self._last is not None and self._planned == position:
            # The query ends here, and Spark ends this process without calling stop (PySpark 4.2.0).
            self._keeper.end()
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest version, and how far the query will be behind it after this epoch."""
        if self._planned is None:
            return None
        try:
            newest = self._reader.seen()
            lag = self._reader.lag(self._planned)
        except LanceStreamError:  # the next epoch raises it, with its reason
            return None
        return newest.to_json() | {
            "versionsBehind": lag.versions,
            "rowsBehind": lag.rows,
            "secondsBehind": round(lag.seconds, 3),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read from one position to another."""
        slices = self._reader.plan(SourceOffset.from_json(start), SourceOffset.from_json(end))
        return [_Task(each) for each in divide(slices, _TASK_BYTES, _TASK_ROWS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows in Spark's types; runs in an executor."""
        assert isinstance(partition, _Task)
        names = self._columns.names
        path = self._options.path
        for part, batch in read_slices(path, self._storage_options, partition.slices, names):
            yield cast_batch(batch, self._target, _changes(part, batch.num_rows), path)


def _changes(part: Slice, rows: int) -> dict[str, pa.Array]:
    """Return the columns that the change feed adds."""
    values = (part.change.value, part.commit_version, part.commit_timestamp)
    return {
        field.name: pa.repeat(pa.scalar(value, field.type), rows)
        for field, value in zip(_CHANGES, values, strict=True)
    }
