"""Stream the Spark DataFrame that a TaskFlow function returns.

The function is shipped to the Spark driver without this file, so it imports in its body. Put JSON
files into the folder `landing` below `folder`, for example one `{"id": 1, "country": "NO"}` a line.
Needs a Spark connection `spark_default` such as `local[*]`.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    params={"folder": Param("/tmp/lance-clicks", type="string", description="Working folder")},
    doc_md=__doc__,
)
def lance_taskflow() -> None:
    """Filter and stream all available clicks in one task."""
    folder = "{{ params.folder }}"

    # [START lance_taskflow]
    @task.lance_stream(
        uri=f"{folder}/clicks.lance",
        checkpoint_location=f"{folder}/checkpoints/clicks",
        query_id="clicks",
        create_if_missing=True,
        retries=3,
    )
    def stream(spark: Any, landing: str, countries: list[str]) -> Any:
        from pyspark.sql import functions

        clicks = spark.readStream.schema("id BIGINT, country STRING").json(landing)
        return clicks.where(functions.col("country").isin(countries))

    stream(landing=f"{folder}/landing", countries=["IS", "NO"])
    # [END lance_taskflow]


lance_taskflow()
