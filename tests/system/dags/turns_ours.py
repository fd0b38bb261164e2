"""A bounded stream every minute, to be backfilled meanwhile: watched by triggerer or worker."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision

for dag_id, deferrable in {"turns_ours": True, "turns_ours_worker": False}.items():
    folder = f"{os.environ.get('TURNS_FOLDER', '/none')}/{dag_id}"
    with DAG(
        dag_id,
        schedule="* * * * *",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
    ):
        LanceStreamOperator(
            task_id="stream",
            uri=f"{folder}/table.lance",
            query_id=f"{dag_id}.query",
            checkpoint_location=f"{folder}/checkpoint",
            source={
                "format": "parquet",
                "options": {"path": f"{folder}/source", "maxFilesPerTrigger": "200"},
                "schema": "id BIGINT, amount DOUBLE",
            },
            create_if_missing=True,
            conf={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "1",
                "spark.log.level": "WARN",
            },
            lance_conn_id=None,
            deferrable=deferrable,
            supervision=Supervision(poll_interval=1),
        )
