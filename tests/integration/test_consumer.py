"""A job that reads a Lance dataset, as that dataset knows it: where it writes, how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus, collect_consumers
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from tests.support.consumers import READER
from tests.support.maintenance import append, ids, make


class Chain:
    """A dataset that anybody writes, and a job that copies it; each run reads all that is new."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root, self.runs = spark, root, 0
        self.source = make(root, 3)
        self.target = str(root / "copy.lance")

    def read(self, **options: Any) -> None:
        self.runs += 1
        document = {
            "launchId": f"run-{self.runs}",
            "source": {"format": "lance", "options": {"path": self.source, **options}},
            "sink": {
                "uri": self.target,
                "queryId": READER,
                "checkpointLocation": str(self.root / "checkpoint"),
                "createIfMissing": True,
            },
            "trigger": "availableNow",
        }
        summary = run(self.spark, JobSpec.parse(document))
        assert not summary.error, summary.message

    def seen(self) -> ConsumerStatus:
        [status] = collect_consumers(open_dataset(self.source))
        return status


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> Chain:
    return Chain(spark, tmp_path)


def test_a_job_that_has_read_everything_is_known_and_not_behind(chain: Chain) -> None:
    chain.read()
    status = chain.seen()
    assert (status.consumer_id, status.versions_behind) == (READER, 0)
    assert (status.uri, status.checkpoint_location) == (
        chain.target,
        str(chain.root / "checkpoint"),
    )
    append(chain.source, 900)
    assert chain.seen().versions_behind == 1
    chain.read()
    assert chain.seen().versions_behind == 0
    assert check(open_dataset(chain.source)).findings == ()
    assert ids(chain.target) == ids(chain.source)


@pytest.mark.slow
def test_what_a_job_passes_over_is_not_unread(chain: Chain) -> None:
    chain.read(skipChangeCommits="true")
    lance.dataset(chain.source).delete("id < 5")
    assert chain.seen().versions_behind == 0
    append(chain.source, 900)
    assert chain.seen().versions_behind == 1
