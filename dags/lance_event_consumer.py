"""Run a DAG when a stream commits new epochs: event-driven, no schedule, no waiting task.

The triggerer watches the dataset that the DAG `lance_flights` streams into. Needs a Lance
connection `lance_default` whose base URI is `/tmp/lance-flights`, that DAG's default `folder`.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import AssetWatcher, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_lance.assets.lance import lance_asset
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger

FOLDER, DATASET, QUERY = "/tmp/lance-flights", "flights.lance", "flights"

# [START lance_asset_watcher]
flights = lance_asset(
    f"{FOLDER}/{DATASET}",
    watchers=[
        AssetWatcher(
            name="new_flights",
            trigger=LanceEpochEventTrigger(
                uri=DATASET, query_id=QUERY, every_epochs=1, poll_interval=5
            ),
        )
    ],
)
# [END lance_asset_watcher]


# [START lance_asset_event]
@task
def count_new(triggering_asset_events: Any = None) -> dict[str, int]:
    """Count the rows committed since the last event, by comparing two versions of the dataset."""
    import lance

    from airflow_provider_lance.hooks.lance import LanceHook

    # Events during a run of this DAG arrive together in the next run.
    events = [event for each in (triggering_asset_events or {}).values() for event in each]
    payloads = [event.extra["payload"] for event in events]
    if not payloads:
        raise AirflowSkipException("started manually, without an event")
    first = min(payload["fromVersion"] for payload in payloads)
    last = max(payloads, key=lambda payload: payload["version"])

    hook = LanceHook()

    def rows(version: int) -> int:
        if version == 0:  # the dataset did not exist yet
            return 0
        where = hook.resolve(DATASET)
        options = hook.storage_options or None
        return lance.dataset(where, version=version, storage_options=options).count_rows()

    return {
        "epoch": last["epoch"],
        "rows": rows(last["version"]) - rows(first),
        "rows_told": sum(payload["rows"] for payload in payloads),
    }


# [END lance_asset_event]


@dag(
    schedule=[flights],
    catchup=False,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    doc_md=__doc__,
)
def lance_event_consumer() -> None:
    """Count the new rows at each event."""
    count_new()


lance_event_consumer()
