"""One driver of ours without Spark, moment by moment and in any output mode; and bare Lance.

Belongs to :mod:`benchmarks.requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import NO_EPOCH, Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from benchmarks.contestants.table import QUERY

KEY = "id"
"""The merge key of an upsert."""

_DRIVER = Driver("run", "checkpoint-id", "/checkpoint")


class Driven:
    """A driver from its start to its release; each method is one moment of its life."""

    def __init__(
        self,
        uri: str,
        storage: Mapping[str, str],
        *,
        mode: OutputMode = OutputMode.APPEND,
        done: int = NO_EPOCH,
    ) -> None:
        """Open the dataset.

        :param done: the last epoch that Spark's log knows as committed.
        """
        self._mode, self.next = mode, done + 1
        self._port = open_dataset(uri, storage)
        known = done > NO_EPOCH
        self._checkpoint = Checkpoint(
            _DRIVER.checkpoint_location, _DRIVER.checkpoint_id if known else None, done, done
        )

    def prepare(self) -> None:
        """Look at what is there and refuse what cannot be exact."""
        self.committer = DriverSession(self._port, QUERY, self._checkpoint)
        self.committer.prepare()

    def claim(self) -> None:
        """Become the owner, with a barrier if the driver before did not release."""
        self.committer.take_over(_DRIVER)
        self.committer.identify(_DRIVER)
        if self.committer.owner is None:
            self.committer.claim(self.next)

    def epoch(self, rows: pa.Table) -> None:
        """Write and commit one epoch."""
        port: Any = self.committer.port
        started_at = utc_now()
        upserts = self._mode is OutputMode.UPDATE
        self.committer.begin(self.next).commit(
            Epoch(
                epoch_id=self.next,
                mode=self._mode,
                fragments=write_fragments(rows, port.dataset),
                rows=rows.num_rows,
                bytes=rows.nbytes,
                started_at=started_at,
                keys=rows.select([KEY]) if upserts else None,
                merge_keys=(KEY,) if upserts else (),
            )
        )
        self.next += 1

    def look(self) -> None:
        """Look for a stop request or a newer owner, as a driver does that waits for data."""
        self.committer.stop_requested(poll=True)

    def release(self) -> None:
        """Give the query up in order."""
        if not self.committer.release():
            raise AssertionError("the query was not released")


def bare(uri: str, storage: Mapping[str, str], mode: OutputMode) -> Callable[[pa.Table], None]:
    """Return what an epoch of this mode is for whoever calls Lance alone, from a live handle."""
    handle = lance.dataset(uri, storage_options=dict(storage))

    def upsert(rows: pa.Table) -> None:
        merge = handle.merge_insert(KEY).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows)

    def commit(rows: pa.Table) -> None:
        nonlocal handle
        fragments = write_fragments(rows, handle)
        operation = (
            lance.LanceOperation.Append(fragments)
            if mode is OutputMode.APPEND
            else lance.LanceOperation.Overwrite(handle.lance_schema, fragments)
        )
        handle = lance.LanceDataset.commit(handle, operation, read_version=handle.version)

    return upsert if mode is OutputMode.UPDATE else commit
