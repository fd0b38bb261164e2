"""What a task does with records whose versions are kept (`scdType=2`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.spark.history import History
from airflow_provider_lance.spark.ordered_task import TRUNCATE_FLAG, OrderedTask, ResolvedRows
from airflow_provider_lance.spark.scd2 import Operation
from airflow_provider_lance.spark.sieve import DELETE_FLAG

__all__ = ["HistoryTask"]


@dataclass(frozen=True, kw_only=True)
class HistoryTask(OrderedTask):
    """A write task for one epoch whose records become versions of their keys' rows."""

    comparison: History

    def resolve(self, rows: pa.Table, table: Any, tombstones: Any) -> ResolvedRows:
        """Return the versions that records change; see :meth:`.OrderedTask.resolve`."""
        history, sifted = self.comparison, self.sieve.sift(rows)
        rows = sifted.rows
        operations = pa.array(np.full(len(rows), Operation.UPSERT, np.int8))
        flags = {DELETE_FLAG: Operation.DELETE, TRUNCATE_FLAG: Operation.TRUNCATE}
        for flag, operation in flags.items():
            if flag in rows.column_names:
                doing = pa.scalar(operation, pa.int8())
                operations = pc.if_else(pc.fill_null(rows[flag], False), doing, operations)
        others = set(self.schema.names) - set(self.merge_keys)
        replaceable = others if self.replace_invalid_text else ()
        changes = history.changes(rows, operations, replaceable)
        found = history.rebuild(changes, table, tombstones)
        return ResolvedRows(
            added=found.write,
            keys=pa.concat_tables([found.write.select(history.row_keys), found.remove]),
            deletes=found.deletes,
            tombstones=found.remember,
            checks=sifted.checks + RowChecks(superseded=found.superseded),
            lookup=None,
            aside=sifted.aside,
        )
