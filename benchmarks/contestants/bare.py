"""The floor: write fragments and append them, from a live handle. Nothing tells a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance

from benchmarks.contestants.lance_table import LanceTable


class Bare(LanceTable):
    """Appends without any protocol."""

    def known(self, epoch_id: int) -> bool:
        return False

    def land(self, epoch_id: int, fragments: Sequence[Any]) -> None:
        self.dataset = lance.LanceDataset.commit(
            self.dataset,
            lance.LanceOperation.Append(list(fragments)),
            read_version=self.dataset.version,
        )
