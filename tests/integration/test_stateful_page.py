"""What the page about stateful queries tells to type, run as it is; and what it says of Spark."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.decorators.stream import _modules_of
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, report_location
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from tests.stateful import queries as stateful
from tests.stateful.queries import EVENTS_DDL, QUERIES, TOTALS, Build, once, sql
from tests.stateful.run import BEGIN, EVENTS, FLUSH, check_rows, events
from tests.support.cli import typed
from tests.support.sparkstream import Stream, spec

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/how-to/stateful.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
LANDING = "/tmp/lake/landing"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    stream = Stream(session, tmp_path, ddl=EVENTS_DDL)
    for file in events(Random(1)):
        stream.add(file)
    return stream


def test_windows_in_sql_land_and_rows_that_come_too_late_are_counted(stream: Stream) -> None:
    late = {"id": 900, "key": FLUSH, "kind": "order", "ts": BEGIN, "amount": 1}
    stream.add(pa.Table.from_pylist([late] * 6, EVENTS))
    given = eval(BLOCKS[0].replace(LANDING, str(stream.source)), {"LanceStreamOperator": dict})
    job = JobSpec.parse(spec(stream, source=given["source"], sql=given["sql"]))
    summary = run(stream.spark, job)
    assert summary.error is None, summary.message
    check_rows(stream, sql(given["sql"]))

    document = read_heartbeat(open_files(report_location(stream.checkpoint)), "launch")
    assert document is not None
    kept = Heartbeat.parse(document).query_state
    assert kept is not None
    assert kept.event_time_watermark == "2026-03-02T11:59:00.000Z"
    (operator,) = kept.operators
    assert (operator.name, operator.rows) == ("stateStoreSave", 1)
    assert operator.bytes > 0
    assert operator.too_late == 1, "six rows of one group, summed up before the operator"
    shown = typed("status", stream.uri).out
    assert re.search(r"query state +stateStoreSave 1 row in [\d.]+ kB\n", shown), shown
    assert re.search(r"event time +2026-03-02 11:59:00 UTC \(\d+ days ago\)\n", shown), shown
    assert re.search(r"too late +1 rows? dropped\n", shown), shown


@pytest.mark.parametrize(("block", "in_batch"), [(1, once), (2, sql(TOTALS))])
def test_the_functions_of_the_page_can_be_shipped_and_run(
    stream: Stream, tmp_path: Path, block: int, in_batch: Build
) -> None:
    file = tmp_path / "page_dag.py"
    file.write_text(f"from tests.integration.test_stateful_page import task\n{BLOCKS[block]}")
    found = importlib.util.spec_from_file_location("page_dag", file)
    assert found is not None
    assert found.loader is not None
    found.loader.exec_module(importlib.util.module_from_spec(found))
    function, options = task.seen
    assert _modules_of(function)
    path = str(stream.source)
    more = {"outputMode": options["output_mode"]} if "output_mode" in options else {}
    more |= options.get("sink_options", {})
    stream.run(function(stream.spark, path), createIfMissing=True, **more)
    check_rows(stream, in_batch)


class _Task:
    """Stands for Airflow's `task`: keeps the function and the arguments of its decorator."""

    seen: tuple[Callable[..., DataFrame], dict[str, Any]]

    def lance_stream(self, **options: Any) -> Callable[..., Any]:
        def keep(function: Callable[..., DataFrame]) -> Callable[..., Any]:
            type(self).seen = (function, options)
            return lambda *call: None

        return keep


task = _Task()


ALLOWED = {
    "windows-append": "append update complete",
    "sessions": "append complete",
    "pandas-state": "update",
    "join-inner": "append update",
    "join-left": "append",
    "drop-duplicates": "append update",
    "drop-within-watermark": "append update",
    "chained-windows": "append",
    "distinct-watermark": "append update complete",
}


def test_spark_refuses_the_output_modes_that_the_page_says(stream: Stream) -> None:
    found = {}
    for name in ALLOWED:
        taken = []
        for mode in ("append", "update", "complete"):
            df = QUERIES[name].stream(stream.read())
            writer = df.writeStream.outputMode(mode).foreachBatch(lambda df, epoch: None)
            place = str(stream.root / f"{name}-{mode}")
            try:
                writer.option("checkpointLocation", place).start().stop()
            except AnalysisException:
                continue
            taken.append(mode)
        found[name] = " ".join(taken)
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("text", "adaptive"), [("SELECT id FROM source", "true"), (stateful.WINDOWS, "false")]
)
def test_spark_switches_adaptive_execution_off_for_stateful_queries(
    stream: Stream, text: str, adaptive: str
) -> None:
    seen = set()

    def look(df: DataFrame, epoch: int) -> None:
        seen.add(df.sparkSession.conf.get("spark.sql.adaptive.enabled"))
        df.write.format("noop").mode("overwrite").save()

    query = sql(text)(stream.read()).writeStream.foreachBatch(look)
    query = query.option("checkpointLocation", stream.checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    assert seen == {adaptive}
