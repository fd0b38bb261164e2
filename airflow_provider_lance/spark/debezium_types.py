"""Values as Debezium writes them, read as a column's type; null where one does not fit."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import LARGEST
from airflow_provider_lance.spec.envelope import EnvelopeOptions, TimestampUnit

__all__ = ["reader_of", "whole"]

_WHOLE = r"^-?[0-9]{1,19}$"
_NUMBER = r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_ENDLESS = r"^(NaN|[+-]?Infinity)$"
_DATE = r"^-?[0-9]{4,6}-[0-9]{2}-[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})?$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_LAST_MILLISECOND = 253_402_300_799_999
"""Of the year 9999; Spark's functions end the task far beyond it."""

_EXACT_DIGITS = 15
"""Digits that a decimal keeps on its way through a double, as JSON numbers go."""
_LONG_DIGITS = 18

Reader = Callable[[Column], Column]


def reader_of(name: str, kind: DataType, options: EnvelopeOptions) -> Reader:
    """Return what reads a column's text; it gives null for a text that does not fit.

    :raises SpecError: Debezium's form of the type is not covered.
    """
    match kind:
        case CharType() | VarcharType():
            pass
        case StringType():
            return lambda text: text.cast(kind)
        case BooleanType():
            return _boolean
        case ByteType() | ShortType() | IntegerType() | LongType():
            return lambda text: whole(text, kind)
        case FloatType() | DoubleType():
            return lambda text: _float(text, kind)
        case DecimalType() if not options.base64_decimals:
            return lambda text: _decimal(text, kind)
        case DecimalType() if kind.precision <= _LONG_DIGITS:
            return lambda text: _base64_decimal(text, kind)
        case DecimalType():
            raise SpecError(
                f"envelope debezium: column {name!r} is {kind.simpleString()}, and decimals=base64 "
                f"is read up to {_LONG_DIGITS} digits: set Debezium's decimal.handling.mode=string"
            )
        case BinaryType():
            return lambda text: F.try_to_binary(text, F.lit("base64"))
        case DateType():
            return _date
        case TimestampType() | TimestampNTZType():
            return lambda text: _timestamp(text, kind, options.timestamps)
    cure = "STRING" + (", and read it in sql with from_json" if _nested(kind) else "")
    raise SpecError(
        f"envelope debezium: column {name!r} is {kind.simpleString()}, which is not read from "
        f"Debezium's JSON; declare {cure}"
    )


def _nested(kind: DataType) -> bool:
    return isinstance(kind, StructType) or kind.typeName() in ("array", "map", "variant")


def whole(text: Column, kind: DataType) -> Column:
    """Read a whole number; null for anything else, and for one that is too large."""
    return F.when(text.rlike(_WHOLE), text.try_cast(kind))


def _boolean(text: Column) -> Column:
    return F.when(text.isin("true", "1"), F.lit(True)).when(text.isin("false", "0"), F.lit(False))


def _float(text: Column, kind: DataType) -> Column:
    made = text.try_cast(kind)
    finite = F.abs(made) < F.lit("Infinity").cast("double")
    return F.when(text.rlike(_ENDLESS), made).when(text.rlike(_NUMBER) & finite, made)


def _decimal(text: Column, kind: DecimalType) -> Column:
    made = text.try_cast(kind)
    fraction = F.regexp_extract(text, r"\.([0-9]*?)0*$", 1)
    plain = text.rlike(r"^-?[0-9]+(\.[0-9]+)?$") & (F.length(fraction) <= kind.scale)
    # A number of JSON comes through a double; Java writes a large one with an exponent.
    digits = F.length(F.regexp_replace(F.regexp_extract(text, "^[^eE]*", 0), "[^0-9]", ""))
    wide = text.try_cast(DecimalType(38, 38 - kind.precision + kind.scale))
    short = text.rlike(_NUMBER) & (digits <= _EXACT_DIGITS) & (wide == made)
    return F.when(plain | short, made) if kind.precision < 38 else F.when(plain, made)


def _base64_decimal(text: Column, kind: DecimalType) -> Column:
    """Read the bytes of an unscaled number, the highest first, as two's complement."""
    found = F.hex(F.try_to_binary(text, F.lit("base64")))
    sign = F.when(F.substring(found, 1, 1) >= "8", F.lit("F" * 16)).otherwise(F.lit("0" * 16))
    padded = F.right(F.concat(sign, found), F.lit(16))
    unscaled = F.conv(padded, 16, -10)
    made = F.concat(unscaled, F.lit(f"E-{kind.scale}")).try_cast(kind)
    return F.when((F.length(found) > 0) & (F.length(found) <= 16), made)


def _date(text: Column) -> Column:
    days = whole(text, IntegerType())
    counted = F.when(F.abs(days) <= _LAST_MILLISECOND // 86_400_000, F.date_add(_epoch_day(), days))
    return F.coalesce(counted, F.when(text.rlike(_DATE), F.left(text, F.lit(10)).try_cast("date")))


def _epoch_day() -> Column:
    return F.lit("1970-01-01").cast("date")


def _timestamp(text: Column, kind: DataType, unit: TimestampUnit | None) -> Column:
    zoned = isinstance(kind, TimestampType)
    written = F.when(text.rlike(_TIME + (_ZONE if zoned else "") + "$"), text.try_cast(kind))
    if unit is None:
        return written
    return F.coalesce(written, _counted(whole(text, LongType()), zoned, unit))


def _counted(number: Column, zoned: bool, unit: TimestampUnit) -> Column:
    a_second = {TimestampUnit.MILLISECONDS: 1000, TimestampUnit.MICROSECONDS: 1_000_000}.get(
        unit, 1_000_000_000
    )
    fits = F.abs(number) <= min(_LAST_MILLISECOND // 1000 * a_second, LARGEST)
    if unit is TimestampUnit.NANOSECONDS:
        fits = fits & (number % 1000 == 0)  # Spark's timestamps have microseconds
    seconds = (number.cast("decimal(19,0)") / a_second).cast("decimal(18,6)")
    if zoned:
        return F.when(fits, seconds.cast("timestamp"))
    start = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    return F.when(fits, start + F.make_dt_interval(secs=seconds))
