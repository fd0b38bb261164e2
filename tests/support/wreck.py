"""Streams in trouble, without Spark: a real dataset, a checkpoint in Spark's form, dead drivers."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa

from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, Owner, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import report_location, write_heartbeat
from airflow_provider_lance.supervision.process import ProcessIdentity

ROWS = 3
LAUNCH = "20261120T140000000Z-1a2b3c4d"


def dead_process() -> ProcessIdentity:
    """Return a process of this host that has ended; its pid belongs to another now."""
    this = ProcessIdentity.of(os.getpid())
    return replace(this, start=f"{this.start.rpartition(':')[0]}:1")


ELSEWHERE = ProcessIdentity("worker-9", 4711, "another-boot/1:1")
"""A process that nobody here can see."""


class Wreck:
    """One query; :meth:`run` is a driver that commits epochs and then dies where it stands."""

    def __init__(self, folder: Path, name: str = "orders.lance", query_id: str = "orders") -> None:
        self.uri, self.query_id = str(folder / name), query_id
        self.checkpoint = folder / "checkpoints" / f"{Path(name).stem}-{query_id}"
        if not Path(self.uri).exists():
            lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), self.uri)

    @property
    def folded(self) -> int:
        """Return the version up to which history is folded into the config."""
        port = open_dataset(self.uri)
        return decode_query(port.config, self.query_id, port.version).folded_version

    def run(
        self,
        epochs: int,
        *,
        unlogged: int = 0,
        process: ProcessIdentity | None = None,
        checkpoint: Path | None = None,
        released: bool = False,
        heartbeat_age: timedelta | None = None,
    ) -> None:
        """Commit the next epochs; the last ``unlogged`` of them are not in Spark's commit log.

        Epochs that Spark planned and has not logged are planned again first, as Spark does. With
        ``heartbeat_age`` the driver left heartbeats, the last of them so long ago.
        """
        place = checkpoint or self.checkpoint
        self._log(place, "metadata", json.dumps({"id": f"id-of-{place.name}"}))
        process = process or dead_process()
        seen = read_checkpoint(str(place), open_files(str(place)))
        committer = DriverSession(
            open_dataset(self.uri), self.query_id, seen, CommitPolicy(watermark_every=1_000)
        )
        committer.prepare()
        committer.identify(
            Driver(
                "run",
                str(seen.id),
                str(place),
                host=process.host,
                pid=process.pid,
                start=process.start,
                launch_id=LAUNCH if heartbeat_age else "",
            )
        )
        first = seen.committed + 1
        for epoch in range(first, first + epochs):
            self._log(place, f"offsets/{epoch}", 'v1\n{"batchTimestampMs":1764000000000}\n{}')
            ids = range(epoch * ROWS, epoch * ROWS + ROWS)
            fragments = lance.fragment.write_fragments(pa.table({"id": ids}), self.uri)
            committer.begin(epoch).commit(
                Epoch(epoch, OutputMode.APPEND, fragments, ROWS, 0, utc_now())
            )
            if epoch < first + epochs - unlogged:
                self._log(place, f"commits/{epoch}", "v1\n{}")
        if released:
            assert committer.release()
        if heartbeat_age:
            assert committer.owner is not None
            beat = {
                "launchId": LAUNCH,
                "queryId": self.query_id,
                "time": (datetime.now(UTC) - heartbeat_age).isoformat(timespec="milliseconds"),
                "state": "running",
                "busySince": None,
                "driver": {**process.to_json(), "token": committer.owner.token},
                "sink": {"version": committer.port.version, "watermark": committer.watermark},
            }
            write_heartbeat(open_files(report_location(str(place))), LAUNCH, beat)

    def plan(self, epoch: int) -> None:
        """Let Spark have planned an epoch that never came to the sink."""
        self._log(self.checkpoint, f"offsets/{epoch}", 'v1\n{"batchTimestampMs":1764000000000}\n{}')

    def clean_up(self) -> None:
        """Let somebody who knows nothing of streams remove all versions but a new one."""
        dataset = lance.dataset(self.uri)
        dataset.update_config({"touched": "yes"})
        dataset.cleanup_old_versions(older_than=timedelta(0))

    @property
    def version(self) -> int:
        return open_dataset(self.uri).version

    @property
    def owner(self) -> Owner:
        port = open_dataset(self.uri)
        owner = decode_query(port.config, self.query_id, port.version).owner
        assert owner is not None
        return owner

    @property
    def watermark(self) -> int:
        """Return the config's watermark."""
        port = open_dataset(self.uri)
        return decode_query(port.config, self.query_id, port.version).watermark

    @property
    def ids(self) -> Counter[int]:
        table = lance.dataset(self.uri).to_table(columns=["id"])
        return Counter(table.column("id").to_pylist())

    @staticmethod
    def _log(place: Path, name: str, content: str) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def whole(epochs: int) -> Counter[int]:
    """Return the ids of so many epochs, each there once."""
    return Counter(range(epochs * ROWS))
