"""Blocking work of triggers, in this package's own threads.

Airflow's triggerer shares asyncio's default threads, a handful, among all triggers and their logs:
a store that hangs there would block everything else.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache, partial
from typing import ParamSpec, TypeVar

from airflow_provider_lance.protocol.lance_errors import named_panics

__all__ = ["Pool", "in_thread"]

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Enum):
    """The thread pool: a stop requested by a user must not wait behind polls."""

    LOOKS = 32
    STOPS = 8


@cache
def _executor(pool: Pool) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(pool.value, thread_name_prefix=f"lance-{pool.name.lower()}")


async def in_thread(pool: Pool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work without blocking the event loop, as ``asyncio.to_thread`` does.

    :raises StorageUnavailableError: Lance panicked, which no trigger would survive.
    """
    context = contextvars.copy_context()
    call = partial(context.run, work, *args, **kwargs)
    with named_panics("a dataset"):
        return await asyncio.get_running_loop().run_in_executor(_executor(pool), call)
