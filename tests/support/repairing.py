"""A query with a checkpoint on disk, as Spark writes it, and drivers that are dead or alive."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.failpoints import CommitResult, Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import (
    Driver,
    Epoch,
    OutputMode,
    Owner,
    QueryState,
    utc_now,
)
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.driver_reports import report_location, write_heartbeat
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import (
    CHECKPOINT_ID,
    QUERY,
    QUICK,
    World,
    epoch_rows,
    lance_world,
    twin_world,
)

HERE = ProcessIdentity.of(os.getpid())
DEAD = replace(HERE, start=f"{HERE.start.rpartition(':')[0]}:1")
"""A process of this host whose pid has been given to another since."""
ELSEWHERE = replace(DEAD, host="elsewhere")
assert (HERE.alive(), DEAD.alive(), ELSEWHERE.alive()) == (True, False, None)


@dataclass
class Scene:
    """One query: its dataset and the place of its checkpoint."""

    world: World
    folder: Path
    query_id: str = QUERY
    policy: CommitPolicy = field(default_factory=lambda: CommitPolicy(backoff=QUICK))

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    @property
    def state(self) -> QueryState:
        port = self.world.open()
        return decode_query(port.config, self.query_id, port.version)

    @property
    def owner(self) -> Owner:
        owner = self.state.owner
        assert owner is not None
        return owner

    @property
    def watermark(self) -> int:
        return exact_watermark(self.world.open(), self.query_id).epoch

    def epochs(self) -> list[int]:
        """Return the epoch of each row, sorted."""
        return sorted(row["epoch"] for row in self.world.rows())

    def look(self, location: str = "") -> Checkpoint:
        location = location or self.checkpoint
        return read_checkpoint(location, open_files(location))

    def beat(self, launch_id: str, process: ProcessIdentity, **sink: object) -> None:
        """Leave the heartbeat of a launch."""
        files = open_files(report_location(self.checkpoint))
        document = {
            "queryId": self.query_id,
            "time": utc_now(),
            "state": "running",
            "driver": {**process.to_json(), "token": 1},
            "sink": sink,
        }
        write_heartbeat(files, launch_id, document)


def twin_scene(folder: Path, dataset: InMemoryDataset | None = None) -> Scene:
    return Scene(twin_world(dataset or InMemoryDataset()), folder)


def lance_scene(folder: Path) -> Scene:
    return Scene(lance_world(str(folder / "t.lance")), folder)


class CheckpointDriver:
    """Plans an epoch in `offsets/`, commits it through the protocol, logs it in `commits/`."""

    def __init__(
        self,
        scene: Scene,
        run_id: str = "run",
        *,
        process: ProcessIdentity = DEAD,
        launch_id: str = "",
        checkpoint: str = "",
        checkpoint_id: str = CHECKPOINT_ID,
        policy: CommitPolicy | None = None,
        on_step: Callable[[Failpoint], None] = lambda step: None,
    ) -> None:
        self.scene, self.location = scene, checkpoint or scene.checkpoint
        self.folder = Path(self.location)
        self.committer = DriverSession(
            scene.world.open(),
            scene.query_id,
            scene.look(self.location),
            policy or scene.policy,
            launch_id=launch_id,
            look=lambda: scene.look(self.location),
            on_step=on_step,
        )
        self.committer.prepare()
        self._write("metadata", json.dumps({"id": checkpoint_id}))
        driver = Driver(
            run_id,
            checkpoint_id,
            self.location,
            host=process.host,
            pid=process.pid,
            start=process.start,
            launch_id=launch_id,
        )
        self.committer.identify(driver)
        seen = scene.look(self.location)
        self.next = seen.committed + 1 if seen.in_flight is None else seen.in_flight

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def plan(self) -> Epoch:
        """Plan the next epoch and write its rows, and go no further."""
        epoch_id = self.next
        self._write(
            f"offsets/{epoch_id}", f'v1\n{{"batchTimestampMs":1}}\n{{"n":{epoch_id + 1}}}\n'
        )
        rows = epoch_rows(epoch_id)
        fragments = self.scene.world.fragments(self.committer.port, rows)
        return Epoch(epoch_id, OutputMode.APPEND, fragments, len(rows), 0, utc_now())

    def land(self, epoch: Epoch) -> CommitResult:
        """Commit a planned epoch, and do not log it."""
        return self.committer.begin(epoch.epoch_id).commit(epoch)

    def log(self, epoch: Epoch) -> None:
        """Log an epoch as done."""
        self._write(f"commits/{epoch.epoch_id}", "v1\n{}")
        self.next = epoch.epoch_id + 1

    def step(self, epochs: int = 1) -> CommitResult:
        """Run whole epochs."""
        for _ in range(epochs):
            epoch = self.plan()
            result = self.land(epoch)
            self.log(epoch)
        return result
