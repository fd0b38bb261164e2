"""Differences between the supported versions of Airflow and its Spark provider, and private names.

Streams have run on Airflow 3.1 to 3.3 with the Spark provider 6.1 to 6.3. Everywhere else this
package uses only names that are public and equal in all of them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_lance.exceptions import SpecError

try:
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
    from airflow.sdk.log import redact  # type: ignore[attr-defined]
except ImportError:  # Airflow 3.1
    from airflow.configuration import conf  # type: ignore[assignment]
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
    from airflow.sdk._shared.secrets_masker import redact

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import ExceptionRetryPolicy

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "SubmittedDriver",
    "ask_yarn",
    "asset_stores",
    "check_tracking",
    "conf",
    "masked_texts",
    "redact",
    "redirect_submit_output",
    "replace_submit_environment",
    "retry_policy",
    "stats",
    "submit_command",
    "submit_environment",
    "submit_process",
    "submitted_driver",
    "task_store",
]


def _find_stats() -> Any:
    """Return the object with ``incr`` and ``gauge``: a module in 3.3, a class in 3.1 and 3.2."""
    try:
        module: Any = importlib.import_module("airflow.sdk.observability.stats")
    except ModuleNotFoundError:  # Airflow 3.1
        module = importlib.import_module("airflow.stats")
    return module if hasattr(module, "incr") else module.Stats


stats = _find_stats()


def retry_policy(
    rules: Sequence[tuple[type[Exception], str, timedelta | None, str]],
) -> ExceptionRetryPolicy:
    """Return Airflow's retry policy for rules ``(error, "FAIL" or "RETRY", delay, reason)``.

    :raises SpecError: this Airflow has no retry policies, which came with 3.3.
    """
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError:
        from airflow import __version__

        raise SpecError(
            f"Airflow {__version__} has no retry policies, they came with 3.3; in the task, wrap "
            "what calls this package into `with no_retry_if_terminal():`"
        ) from None
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(error, RetryAction[action], delay, reason=reason)
            for error, action, delay, reason in rules
        ]
    )


# --- What Airflow keeps for a task and an asset --------------------------------------------------


def task_store(context: Mapping[str, Any]) -> Any:
    """Return the task's state store, ``None`` before Airflow 3.3."""
    return context.get("task_state_store")


def asset_stores(trigger: object) -> list[Any]:
    """Return the state stores of an event trigger's assets; none before Airflow 3.3.

    Identical watchers are one trigger with several assets. Their stores are found by asset only,
    and a trigger cannot find out which assets watch it.
    """
    accessors = getattr(trigger, "asset_state_store", None)
    named = getattr(accessors, "_by_name", {}).values()
    return [*named] or ([] if accessors is None else [accessors])


def masked_texts() -> list[str]:
    """Return the texts that Airflow masks in the logs of this process."""
    from airflow.sdk._shared.secrets_masker import _secrets_masker

    # It keeps them as patterns; this reverses re.escape().
    escaped = re.compile(r"\\(.)", re.DOTALL)
    return sorted(escaped.sub(r"\1", text) for text in _secrets_masker().patterns)


# --- SparkSubmitHook -----------------------------------------------------------------------------


class SubmittedDriver(NamedTuple):
    """What spark-submit's output said about a driver in a cluster; empty where it said nothing."""

    yarn_application: str
    pod: str
    namespace: str


def submit_command(hook: SparkSubmitHook, application: str) -> list[str]:
    """Return the command line of spark-submit."""
    return hook._build_spark_submit_command(application)


def submit_environment(hook: SparkSubmitHook) -> dict[str, str]:
    """Return the hook's additions to spark-submit's environment; call :func:`submit_command` first.

    The hook adds to it while it builds the command.
    """
    return {key: str(value) for key, value in (hook._env or {}).items()}


def replace_submit_environment(
    hook: SparkSubmitHook, replace: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    """Make the hook's ``submit`` add ``replace(additions)`` instead of its own additions."""
    build = hook._build_spark_submit_command

    def built(application: str) -> list[str]:
        command: list[str] = build(application)
        hook._env = replace(submit_environment(hook))
        return command

    hook._build_spark_submit_command = built  # type: ignore[method-assign]


def redirect_submit_output(hook: SparkSubmitHook, take: Callable[[str], None]) -> None:
    """Let ``take`` get each line that the hook's ``submit`` reads, in place of the hook's log.

    What the hook itself has to say of them, such as an application's id, it still logs.
    """
    process = hook._process_spark_submit_log

    def processed(lines: Iterator[Any]) -> None:
        log = hook.log
        hook._log = _WithoutOutput(log)
        try:
            process(_each_taken(lines, take))
        finally:
            hook._log = log

    hook._process_spark_submit_log = processed  # type: ignore[method-assign, assignment]


def _each_taken(lines: Iterator[str], take: Callable[[str], None]) -> Iterator[str]:
    for line in lines:
        take(line)
        yield line


class _WithoutOutput:
    """A logger that passes over a line of output: the hook logs one without arguments."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def info(self, message: str, *args: object) -> None:
        if args:
            self._log.info(message, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def submit_process(hook: SparkSubmitHook | None) -> Any:
    """Return the process of spark-submit, ``None`` while there is none."""
    return getattr(hook, "_submit_sp", None)


def submitted_driver(hook: SparkSubmitHook | None) -> SubmittedDriver:
    """Return what the hook read from spark-submit's output."""
    connection = getattr(hook, "_connection", None) or {}
    return SubmittedDriver(
        str(getattr(hook, "_yarn_application_id", None) or ""),
        str(getattr(hook, "_kubernetes_driver_pod", None) or ""),
        str(connection.get("namespace") or ""),
    )


def check_tracking(hook: SparkSubmitHook) -> None:
    """Make the hook check its arguments for polling YARN.

    :raises ValueError: something is missing.
    """
    hook._validate_yarn_track_via_rm_api_config()


def ask_yarn(
    hook: SparkSubmitHook, path: str, put: Mapping[str, str] | None = None, **query: str
) -> Any:
    """Send one request to YARN's resource manager; return its answer.

    The hook of 6.1 has no public request, and none says that YARN refused to end an application.

    :param put: what to write at this path.
    :raises requests.RequestException: it did not answer, or refused.
    """
    import requests

    answer = requests.request(
        "PUT" if put else "GET",
        f"{hook._get_yarn_rm_base_url()}/ws/v1/cluster/{path}",
        params=query,
        json=put,
        auth=hook._resolved_yarn_rm_auth,
        timeout=hook._HTTP_TIMEOUT,
    )
    answer.raise_for_status()
    return answer.json()
