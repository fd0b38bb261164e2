"""The dataset a stream writes into: opened or made, and checked against the stream's columns."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    SchemaMismatchError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.spark.schema import check_schema, dataset_schema
from airflow_provider_lance.streaming.dataset import (
    LanceDatasetPort,
    lance_session,
    named_panics,
    open_dataset,
)
from airflow_provider_lance.streaming.spec import SinkOptions

__all__ = ["open_target"]

log = logging.getLogger(__name__)


def open_target(df: DataFrame, options: SinkOptions) -> LanceDatasetPort:
    """Open the dataset at its newest version, making it first if the options say so.

    :raises DatasetNotFoundError: there is none, and ``createIfMissing`` is off.
    :raises StorageUnavailableError: the store did not answer, or it could not be made.
    :raises SchemaMismatchError: the stream's columns do not fit, or a merge key is no column.
    :raises SpecError: ``deleteWhen`` is no boolean condition over the stream.
    """
    columns = to_arrow_schema(df.schema, timezone="UTC")
    extra = _read_by_condition(df, options)
    port = _open_or_create(columns, options)
    schema = port.dataset.schema
    check_schema(columns, schema, uri=options.uri, droppable=extra)
    if unknown := [name for name in options.merge_keys if name not in schema.names]:
        raise SchemaMismatchError(
            f"mergeKeys {unknown} are no columns of {options.uri}; it has {schema.names}"
        )
    if nested := [n for n in options.merge_keys if pa.types.is_nested(schema.field(n).type)]:
        raise SchemaMismatchError(
            f"mergeKeys {nested} are lists, structs or maps, which cannot be compared; use columns "
            "of a plain type"
        )
    return port


def _open(options: SinkOptions) -> LanceDatasetPort:
    return open_dataset(options.uri, options.storage_options, cache_bytes=options.cache_bytes)


def _open_or_create(columns: pa.Schema, options: SinkOptions) -> LanceDatasetPort:
    try:
        return _open(options)
    except DatasetNotFoundError:
        if not options.create_if_missing:
            raise
    import lance

    made = dataset_schema(columns, options.vector_sizes)
    try:
        with named_panics(options.uri):
            lance.write_dataset(
                made.empty_table(),
                options.uri,
                mode="create",
                storage_options=dict(options.storage_options) or None,
                session=lance_session(options.cache_bytes),
            )
        log.info("Created the dataset. uri=%s columns=%d", options.uri, len(made))
    except OSError as error:
        # Another driver was faster, or the answer was lost: what is there is checked.
        return _created_after_all(options, error)
    return _open(options)


def _created_after_all(options: SinkOptions, error: OSError) -> LanceDatasetPort:
    try:
        return _open(options)
    except DatasetNotFoundError:
        raise StorageUnavailableError(
            f"cannot create {options.uri}: {str(error).splitlines()[0]}"
        ) from error


def _read_by_condition(df: DataFrame, options: SinkOptions) -> tuple[str, ...]:
    """Check deleteWhen and return the columns it reads: the dataset need not have those."""
    if not options.delete_when:
        return ()
    try:
        evaluated = df.select(F.expr(options.delete_when))
    except (AnalysisException, ParseException) as error:
        raise SpecError(f"deleteWhen cannot be read: {str(error).splitlines()[0]}") from None
    kind = evaluated.schema[0].dataType
    if not isinstance(kind, BooleanType):
        raise SpecError(f"deleteWhen must be a boolean condition, it is {kind.simpleString()}")
    found: Any = evaluated._jdf.queryExecution().analyzed().references().toSeq()
    return tuple(str(found.apply(number).name()) for number in range(found.size()))
