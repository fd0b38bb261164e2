"""The streams that every combination of versions runs."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision
from airflow_provider_lance.sensors.epoch import LanceEpochSensor

FOLDER = os.environ["MATRIX_FOLDER"]


def stream(name: str, *, deferrable: bool) -> LanceStreamOperator:
    return LanceStreamOperator(
        task_id=name,
        uri=f"{FOLDER}/{name}.lance",
        query_id=name,
        checkpoint_location=f"{FOLDER}/{name}.checkpoint",
        source={
            "format": "json",
            "options": {"path": f"{FOLDER}/{name}", "maxFilesPerTrigger": "1"},
            "schema": "id BIGINT, amount DOUBLE, at TIMESTAMP",
        },
        create_if_missing=True,
        conf={"spark.ui.enabled": "false", "spark.sql.session.timeZone": "America/New_York"},
        lance_conn_id=None,
        deferrable=deferrable,
        # A driver that is paused while its task is killed must not count as hanging.
        supervision=Supervision(poll_interval=1.0, heartbeat_timeout=timedelta(minutes=15)),
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


with DAG("matrix_bounded", schedule=None):
    stream("bounded", deferrable=False)

with DAG("matrix_deferred", schedule=None):
    stream("deferred", deferrable=True) >> LanceEpochSensor(
        task_id="arrived",
        uri=f"{FOLDER}/deferred.lance",
        query_id="deferred",
        epoch=2,
        lance_conn_id=None,
        deferrable=True,
    )

# Its first process is killed in mid-stream; a second one follows.
with DAG("matrix_killed", schedule=None):
    stream("killed", deferrable=False)
