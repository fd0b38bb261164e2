"""A real Spark driver with routes, killed by SIGKILL between two tables of an epoch."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import lance
from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.support.processes import finish, python
from tests.support.sparkstream import Stream, orders, spec, write_spec

EPOCHS, ROWS = 4, 30
# An epoch has three routes and the home: each is claimed at its first commit, the home before it.
PLACES = [
    (Failpoint.CLAIM_OWNED, 3),
    (Failpoint.COMMIT_LANDED, 2),
    (Failpoint.COMMIT_CHECKED, 3),
    (Failpoint.COMMIT_LANDED, 5),
    (Failpoint.RELEASE_DONE, 2),
]


def test_next_driver_completes_the_routes_that_lack_an_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    for n in range(EPOCHS):
        stream.add(orders(n * ROWS, ROWS))
    options = {"routeBy": "grp", "watermarkEvery": 2}
    path = write_spec(tmp_path / "spec.json", spec(stream, sink=options))
    for step, occurrence in PLACES:
        driver = python("-m", "tests.support.killed_job", str(path), step.value, str(occurrence))
        status, output = finish(driver)
        assert status == -signal.SIGKILL, (step, output)
    stream.run(createIfMissing=True, **options)
    ids = Counter[int]()
    for number in range(3):
        table = lance.dataset(str(tmp_path / "table.routes" / f"g{number}.lance")).to_table()
        assert set(table.column("grp").to_pylist()) == {f"g{number}"}
        ids.update(table.column("id").to_pylist())
    assert ids == Counter(range(EPOCHS * ROWS))
    home = Counter(
        zip(*stream.table().select(["epoch", "route"]).to_pydict().values(), strict=True)
    )
    assert home == Counter((epoch, f"g{n}") for epoch in range(EPOCHS) for n in range(3))
