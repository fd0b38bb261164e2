"""Which errors a retry cannot mend, told to Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_lance import exceptions
from airflow_provider_lance.exceptions import LanceStreamError, TerminalError, TransientError
from airflow_provider_lance.hooks.errors import lance_retry_policy, no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook


def tree(root: type[LanceStreamError]) -> Iterator[type[LanceStreamError]]:
    """Yield every error of the package below one, itself included."""
    if root.__module__ == exceptions.__name__:
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


TERMINAL, TRANSIENT = list(tree(TerminalError)), list(tree(TransientError))


def decided(policy: ExceptionRetryPolicy, error: BaseException) -> RetryAction:
    return policy.evaluate(error, try_number=1, max_tries=3).action


def test_the_tree_has_two_branches() -> None:
    assert {*TERMINAL, *TRANSIENT, LanceStreamError} == set(tree(LanceStreamError))
    assert len(TERMINAL) > 5
    assert len(TRANSIENT) > 2


@pytest.mark.parametrize("error", TERMINAL)
def test_a_terminal_error_fails_at_once(error: type[LanceStreamError]) -> None:
    decision = lance_retry_policy().evaluate(error("x"), try_number=1, max_tries=3)
    assert decision.action is RetryAction.FAIL
    assert "fail again" in decision.reason


@pytest.mark.parametrize("error", TRANSIENT)
def test_a_transient_error_is_retried(error: type[LanceStreamError]) -> None:
    decision = lance_retry_policy().evaluate(error("x"), try_number=1, max_tries=3)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, None)
    soon = lance_retry_policy(timedelta(seconds=7))
    assert soon.evaluate(error("x"), 1, 3).retry_delay == timedelta(seconds=7)


@pytest.mark.parametrize("error", [ValueError("x"), LanceStreamError("x"), KeyError("x")])
def test_any_other_error_is_left_to_the_task(error: Exception) -> None:
    assert decided(lance_retry_policy(), error) is RetryAction.DEFAULT


def test_retry_policy_fails_on_terminal_errors_of_the_hook(tmp_path: object) -> None:
    hook = LanceHook(lance_conn_id=None)
    policy = lance_retry_policy()
    with pytest.raises(TerminalError) as absent:
        hook.open(f"{tmp_path}/absent.lance")
    assert decided(policy, absent.value) is RetryAction.FAIL
    with pytest.raises(TerminalError) as relative:
        hook.open("absent.lance")
    assert decided(policy, relative.value) is RetryAction.FAIL


def test_retry_policy_is_the_same_after_serialization() -> None:
    policy = lance_retry_policy(timedelta(seconds=7))
    again = ExceptionRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    assert again.serialize() == policy.serialize()
    for error in TERMINAL:
        assert decided(again, error("x")) is RetryAction.FAIL
    for error in TRANSIENT:
        decision = again.evaluate(error("x"), 1, 3)
        assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=7))
    assert decided(again, ValueError("x")) is RetryAction.DEFAULT


def test_retry_policy_works_in_a_serialized_dag() -> None:
    with DAG("mine", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:

        @task(retries=2, retry_policy=lance_retry_policy())
        def look() -> None: ...

        @task
        def other() -> None: ...

        look() >> other()
    serialized = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    again = DagSerialization.from_dict(serialized)
    assert again.get_task("look").has_retry_policy is True
    assert not again.get_task("other").has_retry_policy
    policy = dag.get_task("look").retry_policy
    assert isinstance(policy, ExceptionRetryPolicy)
    assert decided(policy, exceptions.SpecError("x")) is RetryAction.FAIL


@pytest.mark.parametrize("error", TERMINAL)
def test_our_operators_need_no_policy(error: type[LanceStreamError]) -> None:
    said = rf"^{error.__name__}: no such thing$"
    with pytest.raises(AirflowFailException, match=said) as raised, no_retry_if_terminal():
        raise error("no such thing")
    assert isinstance(raised.value.__cause__, error)


@pytest.mark.parametrize("error", [*TRANSIENT, LanceStreamError, ValueError])
def test_no_retry_if_terminal_lets_other_errors_pass(error: type[Exception]) -> None:
    with pytest.raises(error) as raised, no_retry_if_terminal():
        raise error("x")
    assert type(raised.value) is error
