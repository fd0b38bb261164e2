"""A real Spark driver, killed by SIGKILL at every step of claim, commit and release."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import OwnerState
from tests.support.processes import finish, python
from tests.support.sparkstream import Stream, orders, spec, write_spec

EPOCHS, ROWS = 5, 40

MODES = {
    "append": {"watermarkEvery": 2},
    "update": {"watermarkEvery": 2, "outputMode": "update", "mergeKeys": ["id"]},
}
# Where a step is reached more than once, the second time is in the middle of the stream.
PLACES = [
    (Failpoint.CLAIM_OPENED, 1, "append"),
    (Failpoint.CLAIM_OWNED, 1, "append"),
    (Failpoint.CLAIM_BARRED, 1, "append"),
    (Failpoint.CLAIM_REPAIRED, 1, "append"),
    (Failpoint.COMMIT_CHECKED, 3, "append"),
    (Failpoint.COMMIT_LANDED, 2, "append"),
    (Failpoint.COMMIT_LANDED, 3, "update"),
    (Failpoint.COMMIT_FOLDED, 4, "update"),
    (Failpoint.RELEASE_CHECKED, 1, "append"),
    (Failpoint.RELEASE_DONE, 1, "append"),
]


@pytest.mark.parametrize(("step", "occurrence", "mode"), PLACES)
def test_next_driver_completes_the_stream_exactly_once_after_a_kill_at_each_step(
    spark: SparkSession, tmp_path: Path, step: Failpoint, occurrence: int, mode: str
) -> None:
    stream = Stream(spark, tmp_path)
    for n in range(EPOCHS):
        stream.add(orders(n * ROWS, ROWS))
    path = write_spec(tmp_path / "spec.json", spec(stream, sink=MODES[mode]))
    driver = python("-m", "tests.support.killed_job", str(path), step.value, str(occurrence))
    status, output = finish(driver)
    assert status == -signal.SIGKILL, output
    stream.run(createIfMissing=True, **MODES[mode])
    ids = Counter(lance.dataset(stream.uri).to_table().column("id").to_pylist())
    assert ids == Counter(range(EPOCHS * ROWS))
    assert sorted(Counter(stamp.epoch_id for stamp in stream.epochs()).items()) == [
        (n, 1) for n in range(EPOCHS)
    ]
    port = open_dataset(stream.uri)
    owner = decode_query(port.config, "q", port.version).owner
    assert owner is not None
    assert owner.state is OwnerState.RELEASED
