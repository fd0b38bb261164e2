"""A user's functions that fail, shipped to a driver as a user's module is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def _rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "5").load()


def raises(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    raise KeyError(f"no {arguments['column']}")


def may_pass(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    raise ConnectionRefusedError("the registry is away")


def misspelt(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    return _rate(spark).select("valu")


def _price(value):  # type: ignore[no-untyped-def]
    if value == 3:
        raise ValueError(f"no price for {value}\nask the shop")
    return value


def bad_udf(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    """Note what this driver's processes have in their environments; fail in a UDF."""
    if notes := arguments.get("notes"):
        Path(notes).write_text(json.dumps(_environments()))
    return _rate(spark).select(F.udf(_price, "long")("value").alias("price"))


def _prices(values: pd.Series) -> pd.Series:
    return values.map(_price)


def bad_pandas_udf(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    return _rate(spark).select(F.pandas_udf(_prices, "long")("value").alias("price"))


def udf_that_may_pass(spark: SparkSession, arguments: dict[str, str]) -> DataFrame:
    def ask(value):  # type: ignore[no-untyped-def]
        raise TimeoutError("the shop does not answer")

    return _rate(spark).select(F.udf(ask, "long")("value").alias("price"))


def _environments() -> dict[str, Any]:
    found: dict[str, Any] = {"python": dict(os.environ), "pid": os.getpid(), "jvm": os.getppid()}
    for name in ("pid", "jvm"):
        found[f"proc {name}"] = Path(f"/proc/{found[name]}/environ").read_text(errors="replace")
    return found
