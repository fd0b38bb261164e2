"""Columns that a driver adds, where the store loses, delays or doubts the commit; on the twin."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_lance.exceptions import FencedError, SchemaMismatchError
from airflow_provider_lance.protocol.added_columns import decode_added
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, Moment
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.model import Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset
from tests.support.drivers import QUICK, SparkLike, epoch_rows, twin_world

TYPES = {"x": "int64"}


def land(plan: EpochPlan, dataset: InMemoryDataset) -> None:
    fragments = twin_world(dataset).fragments(plan.port, epoch_rows(plan.epoch_id))
    plan.commit(Epoch(plan.epoch_id, OutputMode.APPEND, fragments, 3, 0, utc_now()))


def stamps(dataset: InMemoryDataset) -> list[int]:
    """Return the epochs whose stamped commits added columns, by version."""
    found = (dataset.open().properties(n) or {} for n in range(1, dataset.version + 1))
    return [added.epoch_id for each in found if (added := decode_added(each))]


@pytest.mark.parametrize("fault", [None, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LATE])
def test_columns_are_added_once_whatever_becomes_of_the_request(fault: Fault | None) -> None:
    dataset, log = InMemoryDataset(), {"planned": 0}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    before: Any = driver.committer.port.layout
    plan = driver.committer.begin(1)
    dataset.faults = [fault]
    plan.add_columns(None, TYPES)
    assert plan.port.layout != before
    land(plan, dataset)
    assert dataset.open().layout == plan.port.layout
    assert stamps(dataset) == [1]
    assert [row["epoch"] for row in dataset.rows()] == [0, 0, 0, 1, 1, 1]
    assert driver.committer.release()


def test_a_schema_that_others_change_while_the_commit_is_held_up_is_refused_by_name() -> None:
    dataset, log = InMemoryDataset(), {"planned": 0}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    plan = driver.committer.begin(1)
    dataset.faults, dataset.while_paused = [Fault.PAUSED], dataset.alter
    with pytest.raises(SchemaMismatchError, match="was changed while query 'orders' was running"):
        plan.add_columns(None, TYPES)
    assert stamps(dataset) == []


def test_a_fenced_driver_adds_nothing() -> None:
    dataset, log = InMemoryDataset(), {"planned": 0}
    stale = SparkLike(twin_world(dataset), log, run_id="stale")
    stale.step()
    plan = stale.committer.begin(1)
    SparkLike(twin_world(dataset), log, run_id="next").step()
    before = dataset.open().layout
    with pytest.raises(FencedError):
        plan.add_columns(None, TYPES)
    assert dataset.open().layout == before
    assert stamps(dataset) == []


def test_the_epoch_of_a_stale_driver_cannot_land_behind_the_columns_of_another_query() -> None:
    dataset = InMemoryDataset()
    world = twin_world(dataset)
    first = SparkLike(world, {"planned": 0}, query_id="first")
    second = SparkLike(world, {"planned": 0}, query_id="second")
    first.step()
    second.step()
    plan = second.committer.begin(1)
    adding = first.committer.begin(1)
    adding.add_columns(None, TYPES)
    land(adding, dataset)
    with pytest.raises(SchemaMismatchError, match="missingColumns=null"):
        land(plan, dataset)
    assert len(dataset.rows()) == 9
    again = SparkLike(world, {"planned": 1, "committed": 0}, query_id="second")
    again.step()
    assert len(dataset.rows()) == 12


def test_columns_that_landed_below_the_newest_version_are_added_again() -> None:
    dataset, log = InMemoryDataset(), {"planned": 0}
    now = [0.0]
    policy = CommitPolicy(backoff=QUICK, clock=lambda: Moment(now[0], now[0]))
    driver = SparkLike(twin_world(dataset), log, policy=policy)
    driver.step()
    plan = driver.committer.begin(1)

    def number_is_freed() -> None:
        now[0] += 5  # the writer is held up; others commit twice, and the lower number is freed
        dataset.open().commit(Configure({"a.b": "1"}))
        dataset.open().commit(Configure({"a.b": "2"}))
        dataset.clean_up(dataset.version)

    dataset.faults, dataset.while_paused = [Fault.PAUSED], number_is_freed
    plan.add_columns(None, TYPES)
    land(plan, dataset)
    assert dataset.open().layout == plan.port.layout
    assert [row["epoch"] for row in dataset.rows()] == [0, 0, 0, 1, 1, 1]
    assert stamps(dataset) == [1, 1], "the first one is no part of the newest version"
