"""The same streams under LanceStreamOperator: watched by the triggerer, or by the worker."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision

STREAMS = {
    "stream_ours": (True, timedelta(minutes=10)),
    "stream_ours_worker": (False, timedelta(minutes=10)),
    "stream_ours_stall": (True, timedelta(seconds=15)),
}

FOLDER = "{{ params.folder }}"

for dag_id, (deferrable, stall_timeout) in STREAMS.items():
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
            create_if_missing=True,
            conf={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "1",
                "spark.log.level": "WARN",
            },
            trigger="500 milliseconds",
            deferrable=deferrable,
            supervision=Supervision(
                poll_interval=1.0, restart_delay=timedelta(seconds=3), stall_timeout=stall_timeout
            ),
            retries=4,
            retry_delay=timedelta(seconds=3),
        )
