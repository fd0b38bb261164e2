"""Streams in trouble: real ones, put back to the same moment again and again, and checked."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import Summary, new_launch_id
from tests.support.processes import python
from tests.support.sparkstream import Stream, orders, spec, write_spec

ROWS = 40
"""Of one epoch."""


class Scene:
    """A stream in a folder of its own, which can be put back to how it was."""

    def __init__(self, spark: SparkSession, root: Path, epochs: int) -> None:
        self.stream = Stream(spark, root)
        self.added = 0
        self.add(epochs)

    @property
    def uri(self) -> str:
        return self.stream.uri

    @property
    def checkpoint(self) -> Path:
        return Path(self.stream.checkpoint)

    def add(self, epochs: int = 1) -> None:
        """Add the data of some epochs."""
        for _ in range(epochs):
            self.stream.add(orders(self.added * ROWS, ROWS))
            self.added += 1

    def launch(self, launched_by: str = "", **sink: Any) -> Summary:
        """Run one launch of the job over all that is there, in this process."""
        order = spec(self.stream, new_launch_id(), sink=sink, launchedBy=launched_by or None)
        return run(self.stream.spark, JobSpec.parse(order))

    def start(
        self, what: str, step: Failpoint, occurrence: int, **sink: Any
    ) -> subprocess.Popen[str]:
        """Start a driver in a process of its own that dies or hangs at a step."""
        launch_id = new_launch_id()
        order = spec(self.stream, launch_id, sink=sink, launchedBy="dag:stream")
        path = write_spec(self.stream.root / f"{launch_id}.json", order)
        arguments = (str(path), what, step.value, str(occurrence))
        return python("-m", "tests.support.recovery_driver", *arguments)

    def let_go(self) -> None:
        """Let the drivers that hang go on."""
        for path in self.stream.root.glob("*.json"):
            Path(f"{path}.go").touch()

    def keep(self) -> Callable[[], None]:
        """Keep all as it is now; return what puts it back."""
        root, kept = self.stream.root, Path(f"{self.stream.root}.kept")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(root, kept)
        added = self.added

        def put_back() -> None:
            shutil.rmtree(root)
            shutil.copytree(kept, root)
            self.added = added

        return put_back

    def configure(self, **updates: str | None) -> None:
        """Write config keys of the query by hand; ``_`` of a name is its ``.``."""
        keys = {f"spark.lance.streaming.{word}.q": value for word, value in updates.items()}
        open_dataset(self.uri).commit(Configure(keys))

    def check(self, **kwargs: Any) -> CheckReport:
        """Check the dataset as a person would."""
        return check(open_dataset(self.uri), **kwargs)

    def expect_exactly_once(self) -> None:
        """Assert that the dataset has each row of the source once, as a reader sees it."""
        ids = lance.dataset(self.uri).to_table().column("id").to_pylist()
        assert Counter(ids) == Counter(range(self.added * ROWS))


def codes(report: CheckReport, least: Severity = Severity.WARNING) -> list[Code]:
    """Return the codes that are this bad or worse, worst first."""
    return [finding.code for finding in report.at_or_above(least)]


def finding(report: CheckReport, code: Code) -> Finding:
    """Return the one finding with a code."""
    found = [each for each in report.findings if each.code is code]
    assert len(found) == 1, [each.code for each in report.findings]
    return found[0]


def expect_clean(report: CheckReport) -> None:
    """Assert that nothing is wrong, and that the report says so."""
    assert codes(report) == [], "\n".join(report.lines())
    assert all(each.healthy for each in report.statuses)
    assert report.findings[0].code is Code.HEALTHY
