"""Drivers of the protocol without Spark, over the twin or over a real dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.failpoints import CommitResult, Failpoint
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.testing.dataset import InMemoryDataset

QUERY = "orders"
CHECKPOINT_ID = "11111111-aaaa"
QUICK = Backoff(attempts=6, first=0.0, longest=0.0)
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("epoch", pa.int64())])


@dataclass
class World:
    """One dataset, real or twin, with what a test needs to write and to look."""

    open: Callable[[], DatasetPort]
    fragments: Callable[[DatasetPort, list[dict[str, int]]], list[Any]]
    keys: Callable[[list[dict[str, int]]], Any]
    rows: Callable[[], list[dict[str, int]]]
    compact: Callable[[], None]
    clean_up: Callable[[], None]


def twin_world(dataset: InMemoryDataset) -> World:
    return World(
        open=dataset.open,
        fragments=lambda port, rows: [tuple(rows)],
        keys=lambda rows: [{"id": row["id"]} for row in rows],
        rows=lambda: [dict(row) for row in dataset.rows()],
        compact=dataset.compact,
        clean_up=lambda: dataset.clean_up(dataset.version),
    )


def lance_world(
    uri: str, *, stable_row_ids: bool = False, storage: dict[str, str] | None = None
) -> World:
    from datetime import timedelta

    import lance
    from lance.fragment import write_fragments

    def dataset() -> lance.LanceDataset:
        return lance.dataset(uri, storage_options=storage)

    if not _exists(uri, storage):
        lance.write_dataset(
            SCHEMA.empty_table(),
            uri,
            enable_stable_row_ids=stable_row_ids,
            storage_options=storage,
        )

    def write(port: DatasetPort, rows: list[dict[str, int]]) -> list[Any]:
        assert isinstance(port, LanceDatasetPort)
        return list(write_fragments(pa.Table.from_pylist(rows, SCHEMA), port.dataset))

    return World(
        open=lambda: open_dataset(uri, storage),
        fragments=write,
        keys=lambda rows: pa.Table.from_pylist(rows, SCHEMA).select(["id"]),
        rows=lambda: dataset().to_table().to_pylist(),
        compact=lambda: dataset().optimize.compact_files(),  # noqa: PLW0108
        clean_up=lambda: dataset().cleanup_old_versions(older_than=timedelta(0)),
    )


def _exists(uri: str, storage: dict[str, str] | None) -> bool:
    from airflow_provider_lance.exceptions import DatasetNotFoundError

    try:
        open_dataset(uri, storage)
    except DatasetNotFoundError:
        return False
    return True


def epoch_rows(epoch_id: int, count: int = 3) -> list[dict[str, int]]:
    """Return the rows of an epoch: any driver that plans it gets the same ones."""
    return [{"id": epoch_id * 100 + n, "epoch": epoch_id} for n in range(count)]


class SparkLike:
    """A driver that plans and logs epochs as Spark does, with a checkpoint in memory.

    ``log`` is shared by all drivers of a query: the highest epoch planned and the highest done.
    """

    def __init__(
        self,
        world: World,
        log: dict[str, int],
        *,
        query_id: str = QUERY,
        checkpoint_id: str = CHECKPOINT_ID,
        run_id: str = "run",
        launch_id: str = "",
        launched_at: datetime | None = None,
        policy: CommitPolicy | None = None,
        mode: OutputMode = OutputMode.APPEND,
        heard: Callable[[Driver], int] | None = None,
        on_step: Callable[[Failpoint], None] = lambda step: None,
    ) -> None:
        self.world, self.log, self.mode, self.query_id = world, log, mode, query_id
        self._id = checkpoint_id
        self.committer = DriverSession(
            world.open(),
            query_id,
            self.look(),
            policy or CommitPolicy(backoff=QUICK),
            launch_id=launch_id,
            launched_at=launched_at,
            look=self.look,
            heard=heard,
            on_step=on_step,
        )
        self.committer.prepare()
        self.committer.identify(Driver(run_id, checkpoint_id, "/checkpoint", launch_id=launch_id))
        self.next = self.look().in_flight
        if self.next is None:
            self.next = log.get("committed", -1) + 1

    def look(self) -> Checkpoint:
        known = bool(self.log)
        return Checkpoint(
            "/checkpoint",
            self._id if known else None,
            self.log.get("planned", -1),
            self.log.get("committed", -1),
        )

    def step(self, rows: Iterable[dict[str, int]] | None = None) -> CommitResult:
        """Plan the next epoch, hand it to the sink's protocol, log it as done."""
        epoch_id = self.next
        assert epoch_id is not None
        self.log["planned"] = max(epoch_id, self.log.get("planned", -1))
        rows = list(epoch_rows(epoch_id) if rows is None else rows)
        port = self.committer.port
        result = self.committer.begin(epoch_id).commit(
            Epoch(
                epoch_id=epoch_id,
                mode=self.mode,
                fragments=self.world.fragments(port, rows),
                rows=len(rows),
                bytes=0,
                started_at=utc_now(),
                keys=self.world.keys(rows) if self.mode is OutputMode.UPDATE else None,
                merge_keys=("id",) if self.mode is OutputMode.UPDATE else (),
            )
        )
        self.log["committed"] = max(epoch_id, self.log.get("committed", -1))
        self.next = epoch_id + 1
        return result
