"""The same streams under LanceStreamOperator: watched by the triggerer, or by the worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_lance.operators.stream import LanceStreamOperator

STREAMS: dict[str, dict[str, Any]] = {
    "stream_ours": {"deferrable": True},
    "stream_ours_worker": {"deferrable": False},
    "stream_ours_stall": {"deferrable": True, "stall_timeout": timedelta(seconds=15)},
}

FOLDER = "{{ params.folder }}"

for dag_id, arguments in STREAMS.items():
    with DAG(dag_id, schedule=None, catchup=False, params={"folder": "", "query": ""}):
        LanceStreamOperator(
            task_id="stream",
            uri=f"{FOLDER}/table.lance",
            query_id="{{ params.query }}",
            checkpoint_location=f"{FOLDER}/checkpoint",
            source={
                "format": "parquet",
                "options": {"path": f"{FOLDER}/source", "maxFilesPerTrigger": "1"},
                "schema": "id BIGINT, amount DOUBLE",
            },
            sink_options={"createIfMissing": True},
            conf={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "1",
                "spark.log.level": "WARN",
            },
            trigger="500 milliseconds",
            poll_interval=1.0,
            restart_delay=timedelta(seconds=3),
            retries=4,
            retry_delay=timedelta(seconds=3),
            **arguments,
        )
