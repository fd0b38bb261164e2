"""The project's Spark application under Airflow's own SparkSubmitOperator."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import dag

from airflow_provider_lance import shipping


@dag(schedule=None, catchup=False, params={"folder": "", "query": ""})
def stream_stock() -> None:
    SparkSubmitOperator(
        task_id="stream",
        application=str(shipping.application_path()),
        application_args=["{{ params.folder }}/spec.json"],
        py_files="{{ params.folder }}/airflow_provider_lance.zip",
        name="{{ params.query }}",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.log.level": "WARN",
        },
        retries=4,
        retry_delay=timedelta(seconds=3),
    )


stream_stock()
