"""The job, killed by SIGKILL when a step is reached: `killed_job.py SPEC STEP OCCURRENCE`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec


def main(path: str, step: str, occurrence: str) -> int:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    left = int(occurrence)

    def kill_there(at: Failpoint) -> None:
        nonlocal left
        if at.value == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    spec = JobSpec.loads(Path(path).read_text())
    print(run(session, spec, LanceSink(spec.sink, on_step=kill_there)))
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
