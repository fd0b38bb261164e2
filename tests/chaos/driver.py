"""The job with a mind to die: `python -m tests.chaos.driver ORDERS.json`, in a session of its own.

It is the real job. The orders say where it kills or stops itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.spark import job, sink
from airflow_provider_lance.spark import start as handover
from airflow_provider_lance.spec.job import JobSpec
from tests.chaos.chain.source import register
from tests.chaos.classic import ClassicSink
from tests.chaos.fate import Fate
from tests.chaos.orders import Orders
from tests.chaos.plan import Control, SparkPoint, without
from tests.chaos.sink import ChaosSink

PATIENCE_SECONDS = 3.0
"""For the driver that a query was taken from: here it may be one that was stopped on purpose."""

WATCHED = {
    SparkPoint.PLANNING: ("offsets", True),
    SparkPoint.LOGGING: ("commits", True),
    SparkPoint.LOGGED: ("commits", False),
}
"""Points that only the checkpoint shows: in which log, and whether a half-written entry counts."""


def main(path: str) -> None:
    orders = Orders.loads(Path(path).read_text())
    spec = JobSpec.loads(Path(orders.spec).read_text())
    session = _session(orders)
    jvm = _pid_of_jvm(session)
    fate = Fate(orders, os.getpid(), jvm)
    if orders.point in WATCHED:
        name, begun = WATCHED[SparkPoint(orders.point)]
        log = Path(spec.sink.checkpoint_location, name)
        threading.Thread(target=fate.watch, args=(log, begun), daemon=True).start()
    if orders.reads:
        job.register_source = partial(register, path)  # type: ignore[attr-defined]
    handover._PATIENCE_SECONDS = PATIENCE_SECONDS
    sink.CommitPolicy = partial(CommitPolicy, **_policy(orders))  # type: ignore[assignment,misc]
    chosen = (ClassicSink if orders.control is Control.LOOKBACK else ChaosSink)(
        spec.sink,
        launch_id=spec.launch_id,
        launched_by=spec.launched_by,
        on_step=lambda step: fate.reach(step.value),
    )
    chosen.reach = fate.reach
    ready = Path(f"{orders.sign}.ready")
    ready.with_suffix(".tmp").write_text(str(jvm))
    ready.with_suffix(".tmp").rename(ready)
    summary = job.run(session, spec, chosen)
    print("SUMMARY", json.dumps(summary.to_json()), flush=True)
    os._exit(0)  # all is said, and the JVM ends when its parent has


def _policy(orders: Orders) -> dict[str, Any]:
    """Return what of the protocol is different in this driver."""
    chosen: dict[str, Any] = {"fresh_seconds": orders.fresh} if orders.fresh else {}
    return chosen | without(orders.control)


def _session(orders: Orders) -> SparkSession:
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", orders.java)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def _pid_of_jvm(session: SparkSession) -> int:
    java: Any = session.sparkContext._jvm
    return int(java.java.lang.ProcessHandle.current().pid())


if __name__ == "__main__":
    main(sys.argv[1])
