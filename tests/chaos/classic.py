"""The classic design, as a control: an epoch is appended unless one of the last versions has it.

No owner, no barrier, no watermark: the only evidence is what a look back finds.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark.target import open_target
from tests.chaos.sink import ChaosSink

LOOK_BACK = 100
"""Versions, as in the first public design."""

QUERY, EPOCH = "classic.queryId", "classic.epochId"


class ClassicSink(ChaosSink):
    """Appends like the classic sink; the job around it is the real one."""

    def start(self, df: DataFrame, **trigger: Any) -> StreamingQuery:
        open_target(df, self.options)
        return (
            df.writeStream.option("checkpointLocation", self.options.checkpoint_location)
            .foreachBatch(self)
            .trigger(**trigger)
            .start()
        )

    def write(self, df: DataFrame, epoch_id: int) -> None:
        import lance
        from lance.fragment import write_fragments

        dataset: Any = lance.dataset(self.options.uri)
        if self._seen(dataset, epoch_id):
            return
        fragments = write_fragments(df.toArrow(), dataset)
        self._on_step(Failpoint.COMMIT_CHECKED)
        change = lance.Transaction(
            read_version=dataset.version,
            operation=lance.LanceOperation.Append(fragments),
            transaction_properties={QUERY: self.options.query_id, EPOCH: str(epoch_id)},
        )
        lance.LanceDataset.commit(dataset, change)
        self._on_step(Failpoint.COMMIT_LANDED)

    def _seen(self, dataset: Any, epoch_id: int) -> bool:
        wanted = (self.options.query_id, str(epoch_id))
        for version in range(dataset.version, max(0, dataset.version - LOOK_BACK), -1):
            try:
                transaction = dataset.read_transaction(version)
            except (OSError, ValueError):
                continue  # cleaned up: no evidence, and the design goes on
            stamp = (transaction and transaction.transaction_properties) or {}
            if (stamp.get(QUERY), stamp.get(EPOCH)) == wanted:
                return True
        return False
