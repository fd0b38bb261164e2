"""A consumer is forgotten only as it was seen: whatever happens between look and commit."""

from __future__ import annotations

import pytest

from airflow_provider_lance.exceptions import CommitStateUnknownError, DriverAliveError
from airflow_provider_lance.protocol.codec import consumer_ids
from airflow_provider_lance.protocol.consumers import leave_position
from airflow_provider_lance.repair.consumers import forget_consumer
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset
from tests.support.consumers import READER, position
from tests.support.drivers import QUICK

OLD = 7 * 3600


@pytest.fixture
def dataset() -> InMemoryDataset:
    made = InMemoryDataset()
    leave_position(made.open(), position(1, ago=OLD))
    return made


def test_a_consumer_that_starts_meanwhile_is_not_forgotten(dataset: InMemoryDataset) -> None:
    dataset.while_paused = lambda: leave_position(dataset.open(), position(1)) and None
    dataset.faults.append(Fault.PAUSED)
    with pytest.raises(DriverAliveError, match=r"which was at version 1 at .* may run"):
        forget_consumer(dataset.open(), READER, backoff=QUICK)
    assert consumer_ids(dataset.open().config) == [READER]


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_a_commit_of_unknown_outcome_is_looked_at_again(
    dataset: InMemoryDataset, fault: Fault
) -> None:
    dataset.faults.append(fault)
    assert forget_consumer(dataset.open(), READER, backoff=QUICK).changed
    assert consumer_ids(dataset.open().config) == []


def test_a_store_that_refuses_too_often_is_an_error(dataset: InMemoryDataset) -> None:
    dataset.faults.extend([Fault.LOST_REQUEST] * 9)
    with pytest.raises(CommitStateUnknownError):
        forget_consumer(dataset.open(), READER, backoff=QUICK)
