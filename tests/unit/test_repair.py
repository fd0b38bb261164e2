"""Healing by fold and by release: what is written, what is refused, and how the stream goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import (
    DatasetRestoredError,
    HistoryGapError,
    ProtocolVersionError,
    SpecError,
)
from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.repair.actions import fold_watermark, release_owner
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import QUERY, QUICK
from tests.support.repairing import CheckpointDriver, Scene, lance_scene, twin_scene


@pytest.fixture(params=["twin", "lance"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return twin_scene(tmp_path) if request.param == "twin" else lance_scene(tmp_path)


def release(scene: Scene, **options: Any) -> RepairResult:
    return release_owner(scene.world.open(), QUERY, **{"by": "anna", "backoff": QUICK, **options})


def test_a_watermark_behind_history_is_folded_once(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=3)
    before = scene.state
    assert (before.watermark, scene.watermark) == (-1, 2)
    planned = fold_watermark(scene.world.open(), QUERY, dry_run=True)
    assert (planned.changed, planned.dry_run, scene.state) == (False, True, before)
    repaired = fold_watermark(scene.world.open(), QUERY)
    (write,) = planned.writes
    assert (repaired.changed, repaired.watermark, repaired.version) == (True, 2, write.version)
    config = scene.world.open().config
    assert write.config.items() <= config.items()
    assert scene.state.folded_version == before.version
    again = fold_watermark(scene.world.open(), QUERY)
    assert (again.changed, again.version) == (False, repaired.version)


def test_a_live_driver_goes_on_beside_a_fold(scene: Scene) -> None:
    driver = CheckpointDriver(scene)
    driver.step(epochs=12)  # it has folded by itself once
    fold_watermark(scene.world.open(), QUERY)
    driver.step(epochs=12)
    assert driver.committer.release()
    assert scene.epochs() == [epoch for epoch in range(24) for _ in range(3)]
    assert scene.state.watermark == 23


def test_a_watermark_that_is_not_exact_is_not_folded(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=3)
    scene.world.clean_up()
    version = scene.world.open().version
    with pytest.raises(HistoryGapError, match="cleaned up.*lance-stream release"):
        fold_watermark(scene.world.open(), QUERY)
    assert scene.world.open().version == version


def test_repair_refuses_an_unknown_query_and_another_tools_watermark(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    for repair in (fold_watermark, lambda port, query: release_owner(port, query, by="")):
        with pytest.raises(SpecError, match=f"'other'.*'{QUERY}'"):
            repair(scene.world.open(), "other")
    scene.world.open().commit(Configure({key("lastEpoch", "foreign"): "7"}))
    for repair in (fold_watermark, lambda port, query: release_owner(port, query, by="")):
        with pytest.raises(ProtocolVersionError, match="another tool"):
            repair(scene.world.open(), "foreign")


def test_a_dead_owner_is_released_and_the_next_driver_starts_without_a_barrier(
    scene: Scene,
) -> None:
    dead = CheckpointDriver(scene, "dead", launch_id="L1")
    dead.step(epochs=2)
    dead.land(dead.plan())  # committed, and not in Spark's log: it is replayed
    before = scene.state
    planned = release(scene, dry_run=True)
    assert scene.state == before
    repaired = release(scene)
    assert (repaired.changed, repaired.watermark, repaired.token) == (True, 2, 2)
    assert planned.sentence == repaired.sentence
    assert [write.version for write in planned.writes] == [
        before.version + 1,
        before.version + 2,
        before.version + 3,
    ]
    assert repaired.version == before.version + 3
    owner = scene.owner
    assert (owner.state, owner.driver.launch_id) == (OwnerState.RELEASED, "L1")
    assert owner.driver.run_id.startswith("released by anna ")
    assert scene.state.folded_version == before.version + 2

    successor = CheckpointDriver(scene, "next")
    assert successor.committer.begin(2).decision is Decision.SKIP_REPLAY
    assert successor.step().decision is Decision.SKIP_REPLAY
    successor.step()
    assert successor.committer.manifest_updates == 2  # a claim and an epoch: no barrier, no fold
    assert scene.owner.token == 3
    assert scene.epochs() == [epoch for epoch in range(4) for _ in range(3)]


def test_the_plan_of_a_release_names_the_keys_that_it_writes(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=2)
    request_stop(scene.world.open(), QUERY, by="bob")
    planned = release(scene, dry_run=True)
    release(scene)
    claim, barrier, last = planned.writes
    assert barrier.config == {}
    config = dict(scene.world.open().config)
    owner = key("owner", QUERY)
    volatile = ("time", "runId")
    for written in (last.config, config):
        record = json.loads(str(written[owner]))
        assert all(record.pop(word) for word in volatile)
        assert (record["token"], record["state"]) == (2, "released")
    assert json.loads(str(claim.config[owner]))["state"] == "active"
    assert {name for name, value in last.config.items() if value is None} == {
        key("stop", QUERY),
        key("stopNote", QUERY),
    }
    assert not {key("stop", QUERY), key("stopNote", QUERY)} & config.keys()
    assert {name: value for name, value in last.config.items() if value and name != owner} == {
        name: config[name] for name in last.config if name in config and name != owner
    }
    assert json.dumps(planned.to_json())


def test_a_released_owner_is_left_as_it_is(scene: Scene) -> None:
    driver = CheckpointDriver(scene)
    driver.step()
    driver.committer.release()
    version = scene.world.open().version
    repaired = release(scene)
    assert (repaired.changed, scene.world.open().version) == (False, version)
    assert "since" in repaired.sentence


def test_repair_refuses_a_restored_dataset(tmp_path: Path) -> None:
    scene = lance_scene(tmp_path)
    driver = CheckpointDriver(scene)
    driver.step(epochs=2)
    port: Any = scene.world.open()
    before = port.version
    driver.step(epochs=2)
    older: Any = port.dataset.checkout_version(before)
    older.restore()
    for repair in (fold_watermark, lambda port, query: release_owner(port, query, by="")):
        with pytest.raises(DatasetRestoredError, match="removed epochs 2 to 3"):
            repair(scene.world.open(), QUERY)
    port.dataset.checkout_version(before + 2).restore()
    assert release(scene).watermark == 3


def test_a_compaction_is_no_obstacle(scene: Scene) -> None:
    driver = CheckpointDriver(scene)
    driver.step(epochs=4)
    scene.world.compact()
    fold_watermark(scene.world.open(), QUERY)
    scene.world.compact()
    assert release(scene).watermark == 3
    assert scene.epochs() == [epoch for epoch in range(4) for _ in range(3)]


def test_repair_of_one_query_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    dataset = InMemoryDataset()
    one, two = twin_scene(tmp_path / "a", dataset), twin_scene(tmp_path / "b", dataset)
    two.query_id = "other"
    CheckpointDriver(one, "one").step(epochs=2)
    CheckpointDriver(two, "two").step(epochs=3)
    release(one)
    assert (one.owner.state, two.owner.state) == (OwnerState.RELEASED, OwnerState.ACTIVE)
    assert (one.state.watermark, two.watermark) == (1, 2)
