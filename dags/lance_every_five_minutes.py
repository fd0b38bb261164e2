"""Every five minutes, stream new files into a Lance dataset, then end.

The cheapest way to stream if a delay of minutes is acceptable: nothing runs in between. Put JSON
files into the folder `landing` below `folder`, for example one `{"id": 1, "amount": 2.5}` per line.
Needs a Spark connection `spark_default` such as `local[*]`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Param, dag

from airflow_provider_lance.operators.stream import LanceStreamOperator


@dag(
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    params={"folder": Param("/tmp/lance-payments", type="string", description="Working folder")},
    doc_md=__doc__,
)
def lance_every_five_minutes() -> None:
    """Stream all available rows in one task, exactly once."""
    folder = "{{ params.folder }}"

    # [START lance_bounded]
    LanceStreamOperator(
        task_id="stream",
        uri=f"{folder}/payments.lance",
        query_id="payments",
        checkpoint_location=f"{folder}/checkpoints/payments",
        source={
            "format": "json",
            "options": {"path": f"{folder}/landing", "maxFilesPerTrigger": "100"},
            "schema": "id BIGINT, amount DOUBLE",
        },
        create_if_missing=True,
        lance_conn_id=None,
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END lance_bounded]


lance_every_five_minutes()
