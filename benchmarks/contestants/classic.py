"""The classic design: two transactions an epoch, an append and then the watermark in the config.

A replay is told by the watermark; after a restart the last 100 versions are searched once, for an
epoch whose second transaction did not come to pass. Fragments are written as ours are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance

from benchmarks.contestants.lance_table import LanceTable
from benchmarks.contestants.words import landed, stamp, watermark_key


class Classic(LanceTable):
    """Two manifest updates an epoch."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._key = watermark_key(self.query_id)
        self._watermark = int(self.dataset.config().get(self._key, -1))
        self._restarted = True

    def known(self, epoch_id: int) -> bool:
        if epoch_id <= self._watermark:
            return True
        found = self._restarted and landed(self.dataset, self.query_id, epoch_id)
        self._restarted = False
        if found:
            self._advance(epoch_id)
        return found

    def land(self, epoch_id: int, fragments: Sequence[Any]) -> None:
        transaction = lance.Transaction(
            read_version=self.dataset.version,
            operation=lance.LanceOperation.Append(list(fragments)),
            transaction_properties=stamp(self.query_id, epoch_id),
        )
        self.dataset = lance.LanceDataset.commit(self.dataset, transaction)
        self._advance(epoch_id)

    def _advance(self, epoch_id: int) -> None:
        updates = lance.LanceOperation.UpdateMap({self._key: str(epoch_id)})
        self.dataset = lance.LanceDataset.commit(
            self.dataset,
            lance.LanceOperation.UpdateConfig(config_updates=updates),
            read_version=self.dataset.version,
        )
        self._watermark = epoch_id
