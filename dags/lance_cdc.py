"""A Debezium topic becomes two tables: customers as they are, and as they were.

Every five minutes each task reads what is new in the topic, and ends. The `current` table has the
newest row of each key, the `history` table each version of it. What cannot be read, and customers
with a negative balance, go to the quarantine of the current table:
`lance-stream quarantine customers.lance --conn-id lance_default` lists them.

Needs Kafka with a topic that Debezium fills, a Lance connection `lance_default` with a base URI and
a checkpoint root, and a Spark connection `spark_default` such as `local[*]`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag

from airflow_provider_lance.operators.stream import LanceStreamOperator

# [START lance_cdc_source]
SOURCE = {
    "format": "kafka",
    "options": {
        "kafka.bootstrap.servers": "{{ params.servers }}",
        "subscribe": "{{ params.topic }}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000000",
    },
    "envelope": "debezium",
    "schema": "id BIGINT, name STRING, balance DECIMAL(12,2)",
}
CHANGES = {"mergeKeys": "id", "sequenceBy": "_sequence", "deleteWhen": "_op = 'd'"}
# [END lance_cdc_source]
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The last number is the version of your Spark."""


@dag(
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    params={
        "servers": Param("localhost:9092", type="string", description="Kafka's brokers"),
        "topic": Param("shop.public.customers", type="string", description="What Debezium fills"),
        "connector": Param(CONNECTOR, type="string", description="Loaded by spark-submit"),
    },
    doc_md=__doc__,
)
def lance_cdc() -> None:
    """Read the topic into both tables, side by side."""
    both: dict[str, Any] = {
        "source": SOURCE,
        "output_mode": "update",
        "create_if_missing": True,
        "packages": "{{ params.connector }}",
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
    }

    # [START lance_cdc_current]
    LanceStreamOperator(
        task_id="current",
        uri="customers.lance",
        sink_options=CHANGES
        | {
            "exceptColumns": "_op,_ts",
            "onRefusedRow": "quarantine",
            "expectations": [
                {"name": "named", "condition": "name IS NOT NULL", "action": "warn"},
                {
                    "name": "not_overdrawn",
                    "condition": "_op = 'd' OR balance >= 0",
                    "action": "quarantine",
                },
            ],
        },
        **both,
    )
    # [END lance_cdc_current]

    # [START lance_cdc_history]
    LanceStreamOperator(
        task_id="history",
        uri="customer_versions.lance",
        sql="SELECT id, name, balance, _op, _sequence FROM source WHERE __lance_refused IS NULL",
        sink_options=CHANGES | {"scdType": 2, "exceptColumns": "_op,_sequence"},
        **both,
    )
    # [END lance_cdc_history]


lance_cdc()
