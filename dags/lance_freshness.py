"""Call for help when no new epoch of a stream was committed in time, whatever the reason.

Every 15 minutes a run waits, without a worker slot, for an epoch that is at most 5 minutes old. If
there is none after 10 minutes, Airflow sends the stream's check to a webhook. Needs a Lance
connection `lance_default` with a base URI, an HTTP connection `http_default` and
`apache-airflow-providers-http`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import dag

# From Airflow 3.2 on, these names are in airflow.sdk too.
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_provider_lance.notifications.lance import LanceWebhookNotifier
from airflow_provider_lance.sensors.epoch import LanceEpochSensor

URI, QUERY = "orders.lance", "orders"


# [START lance_freshness]
@dag(
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=10),
        callback=AsyncCallback(LanceWebhookNotifier, kwargs={"uri": URI, "query_id": QUERY}),
    ),
    tags=["lance", "example"],
    doc_md=__doc__,
)
def lance_freshness() -> None:
    """Wait for an epoch that is new."""
    LanceEpochSensor(
        task_id="is_fresh",
        uri=URI,
        query_id=QUERY,
        max_age=timedelta(minutes=5),
        timeout=timedelta(minutes=14).total_seconds(),
        deferrable=True,
    )


# [END lance_freshness]

lance_freshness()
