"""A real driver that dies or hangs at a step: `recovery_driver.py SPEC kill|hang STEP OCCURRENCE`.

One that hangs goes on once there is a file ``SPEC.go``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec


def main(path: str, what: str, step: str, occurrence: str) -> int:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    left = int(occurrence)

    def reach(at: Failpoint) -> None:
        nonlocal left
        left -= at.value == step
        if at.value == step and left == 0:
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while not Path(f"{path}.go").exists():
                time.sleep(0.05)

    spec = JobSpec.loads(Path(path).read_text())
    sink = LanceSink(
        spec.sink, launch_id=spec.launch_id, launched_by=spec.launched_by, on_step=reach
    )
    print(run(session, spec, sink))
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
