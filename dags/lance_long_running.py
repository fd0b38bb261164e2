"""Run a stream all day, supervised without a worker slot, and stop it in the evening.

Needs a Spark connection `spark_default` such as `local[*]`. Put JSON files into the folder
`landing` below `folder`, for example one `{"id": 1, "amount": 2.5}` per line.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import Param, dag

from airflow_provider_lance.assets.lance import lance_asset
from airflow_provider_lance.operators.stop import LanceStreamStopOperator
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision


@dag(
    schedule=None,  # for example "0 6 * * *", with a start_date
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    params={
        "folder": Param("/tmp/lance-orders", type="string", description="Working folder"),
        "minutes": Param(14 * 60, type="number", description="How long the stream runs"),
    },
    doc_md=__doc__,
)
def lance_long_running() -> None:
    """Run the stream and, beside it, the task that stops it."""
    folder = "{{ params.folder }}"
    dataset, query = f"{folder}/orders.lance", "orders"

    # [START lance_long_running]
    LanceStreamOperator(
        task_id="stream",
        uri=dataset,
        query_id=query,
        checkpoint_location=f"{folder}/checkpoints/orders",
        source={
            "format": "json",
            "options": {"path": f"{folder}/landing"},
            "schema": "id BIGINT, amount DOUBLE",
        },
        create_if_missing=True,
        trigger="5 seconds",
        deferrable=True,
        supervision=Supervision(stall_timeout=timedelta(minutes=15)),
        lance_conn_id=None,
        outlets=[lance_asset("/tmp/lance-orders/orders.lance")],
        retries=3,
    )
    # [END lance_long_running]

    evening = DateTimeSensorAsync(
        task_id="evening",
        target_time="{{ dag_run.start_date + macros.timedelta(minutes=params.minutes) }}",
    )

    # [START lance_stop]
    stop = LanceStreamStopOperator(
        task_id="stop",
        uri=dataset,
        query_id=query,
        lance_conn_id=None,
        stop_grace=timedelta(minutes=2),
        deferrable=True,
    )
    # [END lance_stop]

    evening >> stop


lance_long_running()
