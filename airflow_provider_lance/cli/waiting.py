"""Wait for a store with a limit: say on stderr what is waited for, and leave what hangs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from airflow_provider_lance.cli.output import Output
from airflow_provider_lance.exceptions import StorageUnavailableError

__all__ = ["answer_within", "leave"]

T = TypeVar("T")

_FIRST_WORD_SECONDS = 3.0
_left: list[threading.Thread] = []
"""Threads whose calls had not returned when nobody waited for them any longer."""


def answer_within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Return the result of a call that only reads, or raise its error.

    Calls of Lance and pyarrow cannot be interrupted. One that hangs is left in its thread;
    :func:`leave` then ends the process without it.

    :param what: what is asked, such as a dataset's URI.
    :raises StorageUnavailableError: there was no answer within ``seconds``.
    """
    answer: Future[T] = Future()
    thread = threading.Thread(target=_call, args=(call, answer), name=what, daemon=True)
    _left.append(thread)
    thread.start()
    began, said = time.monotonic(), _FIRST_WORD_SECONDS
    while True:
        waited = time.monotonic() - began
        try:
            result = answer.result(max(0.0, min(said, seconds) - waited))
        except TimeoutError:
            if answer.done():  # the call's own time-out
                raise
        else:
            _left.remove(thread)
            return result
        waited = time.monotonic() - began
        if waited >= seconds:
            raise StorageUnavailableError(
                f"{what} did not answer within {seconds:g} s; check the store and the network, "
                "or wait longer with --timeout"
            )
        if waited >= said:
            Output.note(f"still waiting for {what} ({waited:.0f} s)")
            said += _FIRST_WORD_SECONDS


def _call(call: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # also a panic of Lance, which the waiting thread names
        answer.set_exception(error)


def leave(status: int) -> None:
    """End the process at once if a call still hangs; otherwise return."""
    if any(thread.is_alive() for thread in _left):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
