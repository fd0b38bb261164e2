"""What stands in for what older versions of Airflow and PySpark lack.

`make matrix` runs the real older versions; here the newest one is without what they lack.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import datasource, types

from airflow_provider_lance import compat
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.errors import lance_retry_policy
from airflow_provider_lance.spark import compat as spark_compat
from airflow_provider_lance.spark import source

STATS = "airflow.sdk.observability.stats"


def test_without_retry_policies_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.sdk", ModuleType("airflow.sdk"))
    with pytest.raises(SpecError, match=r"came with 3\.3.*no_retry_if_terminal"):
        lance_retry_policy(timedelta(seconds=1))


def test_without_state_stores_nothing_is_kept() -> None:
    assert compat.task_store({"ti": object()}) is None
    assert compat.asset_stores(object()) == []


def test_every_watched_asset_has_a_store() -> None:
    accessors = SimpleNamespace(_by_name={"a": 1, "b": 2})
    assert compat.asset_stores(SimpleNamespace(asset_state_store=accessors)) == [1, 2]
    alone = SimpleNamespace()
    assert compat.asset_stores(SimpleNamespace(asset_state_store=alone)) == [alone]


def test_metrics_go_to_the_class_where_the_module_has_no_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older: Any = ModuleType(STATS)
    older.Stats = object()
    monkeypatch.setitem(sys.modules, STATS, older)
    assert compat._find_stats() is older.Stats
    monkeypatch.delitem(sys.modules, STATS)
    monkeypatch.setitem(sys.modules, STATS, None)  # an import of it fails
    oldest: Any = ModuleType("airflow.stats")
    oldest.Stats = object()
    monkeypatch.setitem(sys.modules, "airflow.stats", oldest)
    assert compat._find_stats() is oldest.Stats


def test_a_type_that_this_pyspark_lacks_is_no_columns_type() -> None:
    missing = spark_compat._type("TypeOfTheFuture")
    known = [getattr(types, name) for name in types.__all__]
    assert issubclass(missing, types.DataType)
    assert not any(issubclass(each, missing) for each in known if isinstance(each, type))
    assert spark_compat._type("StringType") is types.StringType


@pytest.mark.parametrize("older", [False, True])
def test_timestamps_are_utc_with_either_signature(
    monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    newest = spark_compat.to_arrow_schema
    if older:
        monkeypatch.setattr(
            spark_compat,
            "to_arrow_schema",
            # As in PySpark 4.0 and 4.1.
            lambda schema, timestamp_utc=True: newest(schema, timezone="UTC"),
        )
    schema = types.StructType([types.StructField("at", types.TimestampType())])
    assert spark_compat.utc_arrow_schema(schema).field("at").type == pa.timestamp("us", tz="UTC")


def test_end_offsets_are_asked_for_as_this_pyspark_knows_them() -> None:
    class Progress:
        def toOffsetSeq(self, *given: Any) -> tuple[Any, ...]:
            return "older", *given

        def toOffsets(self, *given: Any) -> tuple[Any, ...]:
            return "newer", *given

    class Older:
        def sourceIdMap(self) -> None:
            raise Py4JError("Method sourceIdMap([]) does not exist")

    newer = SimpleNamespace(sourceIdMap=lambda: "names")
    assert spark_compat.source_names(newer) == "names"
    assert spark_compat.source_names(Older()) is None
    assert spark_compat.offsets_of(Progress(), "s", "n", "m") == ("newer", "s", "n", "m")
    assert spark_compat.offsets_of(Progress(), "s", None, "m") == ("older", "s", "m")


def test_a_pyspark_that_cannot_bound_an_epoch_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
    monkeypatch.setattr(source, "pyspark_version", "4.1.3")
    session: Any = SimpleNamespace()  # it has no data sources to register with
    with pytest.raises(SpecError, match=r"needs PySpark 4\.2 or newer, and this is 4\.1\.3"):
        source.register_source(session)
