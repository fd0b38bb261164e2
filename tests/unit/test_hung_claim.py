"""A driver hangs in the middle of its claim until all trace of its successor was cleaned up.

Lance lets the claim land then: it passes over versions that are gone when it looks for conflicts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_lance.exceptions import HistoryGapError
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import SparkLike, World, epoch_rows, lance_world, twin_world


@pytest.fixture(params=["twin", "lance"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "twin":
        return twin_world(InMemoryDataset())
    return lance_world(str(tmp_path / "t.lance"))


@pytest.mark.parametrize("logged", [True, False])
def test_hung_claim_stops_with_a_gap_until_its_epoch_is_resolved(
    world: World, logged: bool
) -> None:
    log: dict[str, int] = {}

    def hang(step: Failpoint) -> None:
        if step is not Failpoint.CLAIM_OPENED or "hung" in log:
            return
        log["hung"] = 1
        successor = SparkLike(world, log, run_id="successor")
        successor.step()
        if not logged:
            log["committed"] = -1  # it died between its commit and Spark's log
        world.open().commit(Configure({"somebody's": "own"}))  # cleanup spares the newest version
        world.clean_up()

    hung = SparkLike(world, log, run_id="hung", on_step=hang)
    with pytest.raises(HistoryGapError, match="epoch 0"):
        hung.step()
    assert not hung.committer.release(), "in doubt: the next claim bars and looks again"
    expected = epoch_rows(0)
    if logged:
        answer = CommitPolicy(on_history_gap=OnHistoryGap(0, True))
        SparkLike(world, log, run_id="next", policy=answer).step()
        expected += epoch_rows(1)
    assert sorted(world.rows(), key=lambda row: row["id"]) == expected
