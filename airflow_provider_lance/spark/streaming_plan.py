"""The sources in the plan of a streaming DataFrame: their options, and the columns of Lance's.

Reads Spark's internals, whose names are those of PySpark 4.2 and 4.3. Where another version
differs, nothing is found.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.option_parsers import contains, is_local
from airflow_provider_lance.source.options import LANCE
from airflow_provider_lance.source.slices import CHANGE_COLUMNS
from airflow_provider_lance.spark.compat import OTHER_INTERNALS
from airflow_provider_lance.spark.source import STREAM_FORMAT

__all__ = ["needed_columns", "quoted", "read_less", "refuse_loop", "source_options"]

_NAMES_ITS_OUTPUT = ("Project", "Aggregate")
"""Above such a node only the columns that it names are visible."""


def refuse_loop(df: DataFrame, uri: str) -> None:
    """Refuse a query that reads the dataset that it writes.

    :param uri: the dataset that is written.
    :raises SpecError: the DataFrame reads it.
    """
    try:
        leaves = list(_lance_leaves(_query(df).analyzed()))
        paths = [str(leaf.extraOptions().get("path")) for leaf in leaves]
    except OTHER_INTERNALS:
        return
    for path in paths:
        one, other = _plain(path), _plain(uri)
        if contains(one, other) or contains(other, one):
            raise SpecError(
                f"the DataFrame reads {path}, and the sink writes {uri}: the stream would read its "
                "own rows for ever. Give it another dataset to write"
            )


def source_options(df: DataFrame, formats: Collection[str]) -> list[dict[str, str]]:
    """Return the options of each source of some formats in a streaming DataFrame.

    :param formats: as users name them, in lower case; so are the names of the options.
    """
    try:
        leaves = _each(_query(df).analyzed().collectLeaves())
        found = [leaf.extraOptions() for leaf in leaves if _is_stream_of(leaf, formats)]
        return [{str(name): str(each.get(name)) for name in each.keySet()} for each in found]
    except OTHER_INTERNALS:
        return []


def needed_columns(df: DataFrame) -> list[str] | None:
    """Return the columns of its one Lance source that a DataFrame's result depends on.

    Spark's own optimizer decides: a column is needed if the projection or aggregation that is the
    first one above the source names it, or a filter below that.

    :return: in the order of the source; ``None`` if the optimizer does not say.
    """
    try:
        session = df.sparkSession._jsparkSession
        plan = session.sessionState().optimizer().execute(_query(df).analyzed())
        every: list[str] = []
        named: set[str] = set()
        for leaf, seen in _leaves_with_names(plan, None):
            if seen is None:
                return None
            every = _names(leaf.output())
            named |= seen
    except OTHER_INTERNALS:
        return None
    return [name for name in every if name in named] if every else None


def read_less(
    df: DataFrame, needed: Collection[str] | None, reader: DataStreamReader
) -> DataFrame | None:
    """Return a Lance source with the same columns that reads only those that are needed.

    The others are null, so a query has the same result: it depends on none of their values. A
    column that may not be null is read nevertheless, because the optimizer may rely on that.

    :param df: the source as it is.
    :param reader: what has loaded it.
    :return: ``None`` if no column can be left out.
    """
    own = [field for field in df.schema if field.name not in CHANGE_COLUMNS]
    if needed is None or any("," in field.name for field in own):  # the option's separator
        return None
    kept = [field.name for field in own if field.name in needed or not field.nullable]
    kept = kept or [own[0].name]
    if len(kept) == len(own):
        return None
    less = reader.option("columns", ",".join(kept)).load()
    return less.select(
        [
            F.col(quoted(field.name))
            if field.name in less.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in df.schema
        ]
    )


def quoted(name: str) -> str:
    """Return a column's name as SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def _query(df: DataFrame) -> Any:
    java: Any = df._jdf
    return java.queryExecution()


def _leaves_with_names(node: Any, named: set[str] | None) -> Iterator[tuple[Any, set[str] | None]]:
    """Yield the Lance sources below a node, each with the columns that are visible above it.

    :param named: those above the node; ``None`` for all.
    """
    if _is_lance(node):
        yield node, named
    kind = node.nodeName()
    if kind in _NAMES_ITS_OUTPUT:
        below: set[str] | None = set(_names(node.references().toSeq()))
    elif kind == "Filter" and named is not None:
        below = named | set(_names(node.references().toSeq()))
    else:
        below = None
    for child in _each(node.children()):
        yield from _leaves_with_names(child, below)


def _lance_leaves(plan: Any) -> Iterator[Any]:
    return (leaf for leaf in _each(plan.collectLeaves()) if _is_lance(leaf))


def _is_lance(node: Any) -> bool:
    return _is_stream_of(node, (LANCE, STREAM_FORMAT))


def _is_stream_of(node: Any, formats: Collection[str]) -> bool:
    return bool(
        node.getClass().getSimpleName() == "StreamingRelationV2"
        and str(node.sourceName()).lower() in formats
    )


def _names(attributes: Any) -> list[str]:
    return [str(each.name()) for each in _each(attributes)]


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(place) for place in range(sequence.size()))


def _plain(place: str) -> str:
    """Return a place of this host without links."""
    return os.path.realpath(place.removeprefix("file:")) if is_local(place) else place
