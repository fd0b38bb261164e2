"""Ask one launch to stop in order, wherever it runs."""

from __future__ import annotations

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.stop_requests import request_stop

__all__ = ["ask_to_stop", "end_launch"]


def ask_to_stop(launch: Launch, hook: LanceHook, by: str) -> bool:
    """Ask exactly this launch to stop after its current epoch; return whether it could be asked.

    On the driver's own host, this asks its driver wrapper, which returns at once, asks through the
    dataset, and kills the driver when its grace has run out. Elsewhere this asks through the
    dataset directly: blocks.

    :param by: who asks, for the driver's summary and its readers.
    :raises TransientError: the store did not answer.
    """
    if launch.stop(by):
        return True
    try:
        port = hook.open(launch.uri)
    except DatasetNotFoundError:
        return False
    return request_stop(port, launch.query_id, by=by, launch_id=launch.launch_id) is not None


def end_launch(launch: Launch, hook: LanceHook, by: str) -> str:
    """Ask a launch to stop, or kill it if it cannot be asked; return what was done, as text.

    :raises TransientError: the store did not answer.
    """
    if ask_to_stop(launch, hook, by):
        return "asked to stop"
    # There is no dataset to ask through, so the driver cannot be in the middle of a commit.
    if launch.kill():
        return "killed"
    return "nobody to be asked"
