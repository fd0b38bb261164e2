"""Compact and clean up a list of tables, beside the streams that write them.

`lance_maintenance` compacts every ten minutes. `lance_maintenance_nightly` brings the indices up to
date and removes old versions. Neither stops or slows a stream. A table with nothing worth doing is
skipped, with the reason. Needs a Lance connection `lance_default` with a base URI.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_lance.operators.optimize import LanceOptimizeOperator

TABLES = Param(
    ["orders.lance", "payments.lance"], type="array", description="Names below the base URI"
)


@task
def tables(params: Any = None) -> list[str]:
    """Return the tables to maintain; each becomes a mapped task of its own."""
    return list(params["tables"])


# [START lance_maintenance_often]
@dag(
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    params={"tables": TABLES},
    doc_md=__doc__,
)
def lance_maintenance() -> None:
    """Compact small fragments before there are many."""
    LanceOptimizeOperator.partial(
        task_id="compact",
        steps=["compact"],
        compaction={"target_rows_per_fragment": 1_000_000, "max_source_fragments": 500},
        min_small_fragments=20,
        deadline=timedelta(minutes=5),
        map_index_template="{{ task.uri }}",
        max_active_tis_per_dagrun=2,
        retries=2,
        retry_delay=timedelta(seconds=30),
    ).expand(uri=tables())


# [END lance_maintenance_often]


# [START lance_maintenance_nightly]
@dag(
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    params={"tables": TABLES},
    doc_md=__doc__,
)
def lance_maintenance_nightly() -> None:
    """Refresh the indices and remove versions older than two days."""
    LanceOptimizeOperator.partial(
        task_id="index_and_clean_up",
        steps=["index", "cleanup"],
        older_than=timedelta(days=2),
        deadline=timedelta(hours=2),
        map_index_template="{{ task.uri }}",
        max_active_tis_per_dagrun=2,
        retries=2,
        retry_delay=timedelta(minutes=5),
    ).expand(uri=tables())


# [END lance_maintenance_nightly]

lance_maintenance()
lance_maintenance_nightly()
