"""The classic design's successor: one transaction an epoch, after a search for the epoch.

Every epoch, not only the first after a restart, searches the last 100 versions for its own number.
Fragments are written as ours are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance

from benchmarks.contestants.lance_table import LanceTable
from benchmarks.contestants.words import landed, stamp


class Successor(LanceTable):
    """One manifest update an epoch, and up to 100 transactions looked at."""

    def known(self, epoch_id: int) -> bool:
        return landed(self.dataset, self.query_id, epoch_id)

    def land(self, epoch_id: int, fragments: Sequence[Any]) -> None:
        transaction = lance.Transaction(
            read_version=self.dataset.version,
            operation=lance.LanceOperation.Append(list(fragments)),
            transaction_properties=stamp(self.query_id, epoch_id),
        )
        self.dataset = lance.LanceDataset.commit(self.dataset, transaction)
