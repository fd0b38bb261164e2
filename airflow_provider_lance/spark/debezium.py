"""Debezium's change events, unpacked: the row, what happened to it, and where that stands.

Each record becomes one row of plain Spark columns, without a Python worker. What cannot be read is
never null in silence: such a row carries the reason, and the record as it came.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.spark.aside import RAW
from airflow_provider_lance.spark.debezium_types import reader_of, whole
from airflow_provider_lance.spark.sieve import REFUSED
from airflow_provider_lance.spec.envelope import EnvelopeOptions

__all__ = ["OPERATION", "SEQUENCE", "TIME", "unpack_debezium"]

OPERATION, TIME, SEQUENCE = "_op", "_ts", "_sequence"
"""What happened: ``c``, ``u``, ``d``, ``r``, ``t``; when, in the database; and the order of it."""

_SOURCE = (
    "STRUCT<connector STRING, ts_ms STRING, ts_us STRING, lsn STRING, sequence STRING, "
    "file STRING, pos STRING, row STRING>"
)
_BODY = (
    f"before MAP<STRING, STRING>, after MAP<STRING, STRING>, op STRING, ts_ms STRING, "
    f"source {_SOURCE}"
)
_VALUE = f"payload STRUCT<{_BODY}>, {_BODY}, __corrupt STRING"
_KEY = "MAP<STRING, STRING>"
_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "__corrupt"}

_PLACEHOLDERS = (
    "__debezium_unavailable_value",
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",  # in a column of bytes
)
"""What stands where Postgres did not log a large value that an update left alone."""

_LOGGED = ("postgresql", "mysql", "mariadb")
"""The connectors whose log positions are read."""
_BINLOG = r"\.([0-9]{1,18})$"
_SHOWN = 100


def unpack_debezium(
    df: DataFrame, schema: str | StructType, options: EnvelopeOptions | None = None
) -> DataFrame:
    """Return the rows of change events as Debezium writes them with Kafka Connect's JsonConverter.

    The result has the columns of the schema, then ``_op``, ``_ts`` (the change in the database),
    ``_sequence`` (a struct that orders the changes of a key; see the how-to page), and
    ``__lance_refused`` and ``__lance_raw``, which the sink takes off again. Records without a value
    (Kafka's tombstones) are left out: each follows a delete.

    :param df: a column ``value``, text or bytes; also read: ``key``, ``topic``, ``partition``,
        ``offset``.
    :param schema: the row's columns and types.
    :raises SpecError: no ``value``; a column with a reserved name, or of a type that is not read.
    """
    options = options or EnvelopeOptions()
    fields = _fields(schema)
    readers = {each.name: reader_of(each.name, each.dataType, options) for each in fields}
    kinds = {each.name: each.dataType for each in df.schema}
    if not isinstance(kinds.get("value"), StringType | BinaryType):
        raise SpecError(
            "envelope debezium: the source needs a column 'value' of text or bytes, as Kafka's "
            f"has; it has {df.columns}"
        )
    has_key = isinstance(kinds.get("key"), StringType | BinaryType)
    offset = F.col("offset").cast("long") if "offset" in kinds else F.lit(None).cast("long")
    opened = df.where(F.col("value").isNotNull()).select(
        F.from_json(F.col("value").cast("string"), _VALUE, _JSON).alias("e"),
        (_map_of_key() if has_key else F.lit(None).cast(_KEY)).alias("k"),
        offset.alias("o"),
        _valid(F.col("value")).alias("valid"),
        _whole_object(F.col("value").cast("string")).alias("object"),
        _raw(kinds).alias("raw"),
    )
    wrapped = F.col("e.payload").isNotNull() & F.col("e.op").isNull()
    parts = ("before", "after", "op", "ts_ms", "source")
    body = [
        F.when(wrapped, F.col(f"e.payload.{name}")).otherwise(F.col(f"e.{name}")).alias(name)
        for name in parts
    ]
    events = opened.select("*", *body).select("*", _row().alias("row"))
    texts = events.select("*", F.struct(*(_text(name).alias(name) for name in readers)).alias("t"))
    values = [reader(F.col(_inner("t", name))).alias(name) for name, reader in readers.items()]
    read = texts.select(
        "*",
        F.struct(*values).alias("v"),
        _time().alias(TIME),
        _sequence().alias(SEQUENCE),
    ).select("*", _problem(fields, options).alias(REFUSED))
    good = F.col(REFUSED).isNull()
    return read.select(
        *(F.when(good, F.col(_inner("v", name))).alias(name) for name in readers),
        F.when(good, F.col("op")).alias(OPERATION),
        F.when(good, F.col(TIME)).alias(TIME),
        F.when(good, F.col(SEQUENCE)).alias(SEQUENCE),
        F.col(REFUSED),
        F.when(~good, F.col("raw")).alias(RAW),
    )


def _fields(schema: str | StructType) -> Sequence[StructField]:
    kind = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(kind, StructType) or not kind.fields:
        raise SpecError("envelope debezium: schema names the row's columns: 'id BIGINT, name …'")
    taken = {OPERATION, TIME, SEQUENCE, REFUSED, RAW}
    if found := [each.name for each in kind.fields if each.name.lower() in taken]:
        raise SpecError(
            f"envelope debezium: columns {found} have names that the unpacked rows use themselves; "
            "leave them out of schema"
        )
    return kind.fields


def _inner(struct: str, name: str) -> str:
    return f"{struct}.`{name.replace('`', '``')}`"


# ------------------------------------------------------------------------------- the parts of it


def _valid(value: Column) -> Column:
    return F.is_valid_utf8(value.cast("string"))


def _whole_object(text: Column) -> Column:
    """Return whether a text can be one object: Spark reads past whatever follows it."""
    return F.trim(text).startswith("{") & F.trim(text).endswith("}")


def _map_of_key() -> Column:
    found = F.from_json(F.col("key").cast("string"), _KEY)
    payload = F.try_element_at(found, F.lit("payload"))
    wrapped = F.map_contains_key(found, F.lit("schema")) & payload.isNotNull()
    return F.when(wrapped, F.from_json(payload, _KEY)).otherwise(found)


def _raw(kinds: dict[str, DataType]) -> Column:
    parts = [name for name in ("topic", "partition", "offset", "key", "value") if name in kinds]
    shown = []
    for name in parts:
        column = F.col(name)
        if isinstance(kinds[name], StringType | BinaryType):
            text = column.cast("string")
            column = F.when(_valid(column), text).otherwise(F.base64(column.cast("binary")))
        shown.append(column.alias(name))
    return F.to_json(F.struct(*shown))


def _row() -> Column:
    op = F.col("op")
    return F.when(op.isin("c", "u", "r"), F.col("after")).when(
        op == "d", F.coalesce(F.col("before"), F.col("k"))
    )


def _text(name: str) -> Column:
    text = F.try_element_at(F.col("row"), F.lit(name))
    # A row that is deleted needs no more than its key.
    return F.when((F.col("op") == "d") & text.isin(*_PLACEHOLDERS), None).otherwise(text)


def _time() -> Column:
    micros = whole(F.col("source.ts_us"), LongType())
    milliseconds = F.coalesce(
        whole(F.col("source.ts_ms"), LongType()), whole(F.col("ts_ms"), LongType())
    )
    seconds = F.coalesce(
        micros.cast("decimal(19,0)") / 1_000_000, milliseconds.cast("decimal(19,0)") / 1000
    )
    return F.when(F.abs(seconds) < 253_402_300_800, seconds.cast("decimal(18,6)")).cast("timestamp")


def _sequence() -> Column:
    """Return where a change stands in the database's log: ``(log, position, row)``.

    Postgres: the last commit before it and its own LSN; a transaction's changes may have lower LSNs
    than another's that committed before. MySQL: the number of the binlog file, which as text would
    put 1000000 before 999999; the position; the row of the event. Others: the offset in Kafka.
    """
    lsn = whole(F.col("source.lsn"), LongType())
    commit = F.get(F.from_json(F.col("source.sequence"), "ARRAY<STRING>"), F.lit(0))
    file = F.regexp_extract(F.col("source.file"), _BINLOG, 1).try_cast("long")
    position = whole(F.col("source.pos"), LongType())
    # May be null to Spark: Arrow has no null struct with a field that may not be.
    nothing = F.when(F.col("op").isNotNull(), F.lit(0).cast("long"))
    row = F.coalesce(whole(F.col("source.row"), LongType()), nothing)
    known = F.coalesce(F.col("source.connector").isin(*_LOGGED), F.lit(False))
    offset = F.when(~known, F.col("o"))
    return (
        F.when(
            lsn.isNotNull(),
            _place(F.coalesce(whole(commit, LongType()), lsn), lsn, nothing),
        )
        .when(file.isNotNull() & position.isNotNull(), _place(file, position, row))
        .when(offset.isNotNull(), _place(nothing, offset, nothing))
    )


def _place(log: Column, position: Column, row: Column) -> Column:
    return F.struct(log.alias("log"), position.alias("position"), row.alias("row"))


# ------------------------------------------------------------------------------ what is wrong


def _problem(fields: Sequence[StructField], options: EnvelopeOptions) -> Column:
    op = F.col("op")
    corrupt = F.col("e").isNull() | F.col("e.__corrupt").isNotNull() | ~F.col("object")
    rules: list[tuple[Column, Column | str]] = [
        (~F.col("valid"), "the value is not UTF-8"),
        (corrupt, "the value is not JSON of a change event"),
        (op.isNull(), "the value has no op: it is no change event of Debezium"),
        (~op.isin("c", "u", "d", "r", "t"), _said("op ", op, " is none of c, u, d, r, t")),
        (
            F.col("row").isNull() & (op == "d"),
            "op d without before, and the key is no JSON object: the row is not known",
        ),
        (F.col("row").isNull() & (op != "t"), _said("op ", op, " without after")),
        (F.col(TIME).isNull(), "ts_ms is missing, or is no time"),
        (F.col(SEQUENCE).isNull(), "source says no position: no lsn, and no file and pos"),
    ]
    for field in fields:
        rules += _problems_of(field, options)
    return F.coalesce(*(F.when(_true(rule), _as_text(text)) for rule, text in rules))


def _problems_of(field: StructField, options: EnvelopeOptions) -> list[tuple[Column, Column | str]]:
    name, text = field.name, F.col(_inner("t", field.name))
    stays = F.col("op").isin("c", "u", "r")
    missing = stays & ~F.map_contains_key(F.col("row"), F.lit(name))
    kind = field.dataType.simpleString()
    hint = ""
    if kind.startswith("timestamp"):
        hint = " (what a number counts is said by the envelope option timestamps)"
    elif kind.startswith("decimal"):
        hint = " (the envelope option decimals says whether it is text or base64)"
    rules: list[tuple[Column, Column | str]] = [
        (
            stays & text.isin(*_PLACEHOLDERS),
            f"column {name!r} is left out of the event, as Postgres does with large values that "
            "did not change: ALTER TABLE … REPLICA IDENTITY FULL",
        ),
        (
            text.isNotNull() & F.col(_inner("v", name)).isNull(),
            _said(f"column {name!r} is not {kind}{hint}: ", text, ""),
        ),
    ]
    if not options.missing_is_null:
        rules.insert(
            0,
            (
                missing,
                f"the row has no column {name!r}: leave it out of schema, or "
                "set the envelope option missingColumns=null",
            ),
        )
    if not field.nullable:
        rules.append((stays & text.isNull(), f"column {name!r} is null, and is NOT NULL"))
    return rules


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _as_text(text: Column | str) -> Column:
    return F.lit(text) if isinstance(text, str) else text


def _said(before: str, value: Column, after: str) -> Column:
    return F.concat(F.lit(before), F.left(value, F.lit(_SHOWN)), F.lit(after))
