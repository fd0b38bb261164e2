"""Three streams in a chain: payments land, one row for each payment, totals of each hour.

`lance_chain` runs all the time. Its commits start `lance_chain_cleaned`, and the end of that run
starts `lance_chain_totals`: each reads what is new in the dataset before it, exactly once, and
ends. `lance_chain_stop` stops the first stream; the other two read what is left and end by
themselves.

Put JSON files into the folder `landing` below `folder`, one payment a line:
`{"id": 1, "amount": 2.5, "paid_at": "2026-01-01T09:30:00Z", "changed_at": "2026-01-01T09:30:00Z"}`.
A later line with the same `id` corrects the payment. Needs PySpark 4.2 or newer, a Lance connection
`lance_default` with a base URI and a checkpoint root, and a Spark connection `spark_default` such
as `local[*]`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import AssetWatcher, Param, dag

from airflow_provider_lance.assets.lance import lance_asset
from airflow_provider_lance.operators.stop import LanceStreamStopOperator
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger

BASE = "/tmp/lance-chain"
LANDING, CLEANED, TOTALS = "chain_landing.lance", "chain_cleaned.lance", "chain_totals.lance"
FEW_PARTITIONS = {"spark.sql.shuffle.partitions": "4"}

# [START lance_chain_assets]
landing = lance_asset(
    f"{BASE}/{LANDING}",
    watchers=[
        AssetWatcher(
            name="landed_payments",
            trigger=LanceEpochEventTrigger(uri=LANDING, query_id="chain_landing", poll_interval=5),
        )
    ],
)
cleaned = lance_asset(f"{BASE}/{CLEANED}")
# [END lance_chain_assets]


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    params={"folder": Param(BASE, type="string", description="Where the files arrive")},
    doc_md=__doc__,
)
def lance_chain() -> None:
    """Append every line of the files."""
    # [START lance_chain_landing]
    LanceStreamOperator(
        task_id="stream",
        uri=LANDING,
        source={
            "format": "json",
            "options": {"path": "{{ params.folder }}/landing"},
            "schema": "id BIGINT, amount DOUBLE, paid_at TIMESTAMP, changed_at TIMESTAMP",
        },
        trigger="10 seconds",
        create_if_missing=True,
        deferrable=True,
        retries=3,
    )
    # [END lance_chain_landing]


@dag(
    schedule=[landing],
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    doc_md=__doc__,
)
def lance_chain_cleaned() -> None:
    """Keep the newest line of each payment."""
    # [START lance_chain_cleaned]
    LanceStreamOperator(
        task_id="stream",
        uri=CLEANED,
        source={"format": "lance", "options": {"path": LANDING}},
        sql="""
            SELECT id, max_by(amount, changed_at) AS amount, max_by(paid_at, changed_at) AS paid_at
            FROM source WHERE amount > 0 GROUP BY id
        """,
        output_mode="update",
        sink_options={"mergeKeys": ["id"], "changeFeed": True},
        create_if_missing=True,
        conf=FEW_PARTITIONS,
        outlets=[cleaned],
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END lance_chain_cleaned]


@dag(
    schedule=[cleaned],
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    doc_md=__doc__,
)
def lance_chain_totals() -> None:
    """Add what became of each payment to its hour, and take off what it was before."""
    # [START lance_chain_totals]
    LanceStreamOperator(
        task_id="stream",
        uri=TOTALS,
        source={"format": "lance", "options": {"path": CLEANED, "readChangeFeed": "true"}},
        sql="""
            SELECT date_trunc('HOUR', paid_at) AS hour, sum(sign) AS payments,
                   sum(sign * amount) AS amount
            FROM (
                SELECT *, if(_change_type IN ('insert', 'update_postimage'), 1, -1) AS sign
                FROM source
            )
            GROUP BY 1
        """,
        output_mode="update",
        sink_options={"mergeKeys": ["hour"], "deleteWhen": "payments = 0"},
        create_if_missing=True,
        conf=FEW_PARTITIONS,
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END lance_chain_totals]


@dag(schedule=None, catchup=False, tags=["lance", "example"], doc_md=__doc__)
def lance_chain_stop() -> None:
    """Stop the chain: the first stream ends, and the others then find nothing new."""
    # [START lance_chain_stop]
    LanceStreamStopOperator(task_id="stop", uri=LANDING, query_id="chain_landing", deferrable=True)
    # [END lance_chain_stop]


lance_chain()
lance_chain_cleaned()
lance_chain_totals()
lance_chain_stop()
