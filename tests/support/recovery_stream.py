"""One driver over a real dataset, with a checkpoint in Spark's form and reports beside it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_lance.diagnostics.collect import collect
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    report_location,
    write_heartbeat,
    write_summary,
)
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.drivers import QUICK, lance_world

HERE = ProcessIdentity.of(os.getpid())
DEAD = f"0000-an-older-boot/1:{HERE.start.rpartition(':')[2]}"
L1, L2 = "20260301T000000000Z-00000001", "20260302T000000000Z-00000002"


class Stream:
    """One driver over a real dataset, with a checkpoint in Spark's form and reports beside it."""

    def __init__(self, folder: Path, query_id: str = "q", **driver: Any) -> None:
        self.uri, self.checkpoint = str(folder / "t.lance"), folder / "checkpoint"
        self.query_id, self.world = query_id, lance_world(self.uri)
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "commits").mkdir(exist_ok=True)
        (self.checkpoint / "metadata").write_text('{"id": "cp"}')
        known = Checkpoint(str(self.checkpoint), "cp")
        self.committer = DriverSession(
            self.world.open(), query_id, known, CommitPolicy(backoff=QUICK), look=lambda: known
        )
        self.committer.prepare()
        record = {"host": HERE.host, "pid": HERE.pid, "start": HERE.start, "launch_id": L1}
        self.committer.identify(Driver("run-1", "cp", str(self.checkpoint), **(record | driver)))

    def commit(self, epoch_id: int, count: int = 3) -> int:
        """Commit an epoch as Spark would have it, and return its version."""
        (self.checkpoint / "offsets" / str(epoch_id)).write_text("v1\n{}\n-")
        rows = [{"id": n, "epoch": epoch_id} for n in range(count)]
        written = self.world.fragments(self.committer.port, rows)
        epoch = Epoch(epoch_id, OutputMode.APPEND, written, count, 0, utc_now())
        self.committer.begin(epoch_id).commit(epoch)
        (self.checkpoint / "commits" / str(epoch_id)).write_text("v1\n{}")
        return self.committer.port.version

    @property
    def reports(self) -> Any:
        return open_files(report_location(str(self.checkpoint)))

    def beat(self, launch_id: str = L1, **changes: Any) -> None:
        """Write a heartbeat of a driver that did all that was done so far."""
        owner, watermark = self.committer.owner, self.committer.watermark
        beat: dict[str, Any] = {
            "launchId": launch_id,
            "queryId": self.query_id,
            "time": utc_now(),
            "state": "running",
            "busySince": None,
            "driver": {**HERE.to_json(), "runId": "run-1", "token": owner.token if owner else None},
            "sink": {
                "epoch": watermark,
                "rows": 3,
                "version": self.committer.port.version,
                "watermark": watermark,
            },
            "progress": {"id": "cp"},
        }
        write_heartbeat(self.reports, launch_id, beat | changes)

    def end(self, launch_id: str = L1, **changes: Any) -> None:
        """Write a summary."""
        counts = dict.fromkeys(("epochs", "rows", "deletes", "skipped", "manifest_updates"), 0)
        ended = Summary(
            launch_id, self.query_id, self.uri, EndReason.FINISHED, first_epoch=None,
            last_epoch=None, watermark=-1, version=None, released=True, seconds=1.0, **counts,
        )  # fmt: skip
        write_summary(self.reports, replace(ended, **changes))

    def look(self, **kwargs: Any) -> Evidence:
        return collect(open_dataset(self.uri), self.query_id, **kwargs)


def warning_codes(evidence: Evidence) -> list[Code]:
    """Return the codes that are a warning or worse, worst first."""
    return [each.code for each in evaluate_rules(evidence) if each.severity >= Severity.WARNING]
