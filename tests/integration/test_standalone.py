"""A stream on a standalone cluster with two workers, whose executors are killed in mid-epoch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_lance import shipping
from tests.support.cluster import standalone_cluster
from tests.support.processes import wait_for
from tests.support.sparkstream import Stream, orders, spec, write_spec
from tests.support.submit import Submitter

EPOCHS, ROWS = 6, 40
SLOWLY = "SELECT * FROM source WHERE reflect('java.lang.Thread', 'sleep', 50L) IS NOT NULL"
"""An epoch takes two seconds: its task is killed in its middle."""


@pytest.mark.slow
def test_each_row_lands_once_though_executors_are_killed(submit: Submitter, tmp_path: Path) -> None:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]
    for number in range(EPOCHS):  # each becomes one epoch
        stream.add(orders(number * ROWS, ROWS))
    path = write_spec(tmp_path / "spec.json", spec(stream, sql=SLOWLY, sink={"smallEpochRows": 0}))
    ends: list[tuple[int, str]] = []
    with standalone_cluster(tmp_path / "cluster") as cluster:
        application = shipping.application_path()

        def run() -> None:
            ends.append(cluster.submit(application, submit.zip, str(path)))

        running = threading.Thread(target=run)
        running.start()
        try:
            for epoch in (1, 3):
                planned = Path(stream.checkpoint) / "offsets" / str(epoch)
                wait_for(f"epoch {epoch}", planned.exists)
                wait_for("its task", lambda: bool(cluster.busy_executors()))
                for executor in cluster.busy_executors():
                    executor.kill()
        finally:
            running.join(180)
        [(status, output)] = ends
        lost = [
            each
            for each in cluster.events()
            if each["Event"] == "SparkListenerTaskEnd"
            and each["Task End Reason"]["Reason"] == "ExecutorLostFailure"
        ]
    assert status == 0, output
    assert len(lost) >= 2, "tasks were killed, not only idle executors"
    assert sorted(stream.table()["id"].to_pylist()) == list(range(EPOCHS * ROWS))
