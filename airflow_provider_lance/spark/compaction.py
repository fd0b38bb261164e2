"""Compaction tasks on executors: each task is its own Spark job, as many at once as fit.

Results are needed one by one as they arrive, and no task may start once the time is up. One job for
all tasks would return its results at its end, and `toLocalIterator` would run the tasks one after
the other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import lance
from lance.optimize import CompactionTask, RewriteResult
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, is_panic
from airflow_provider_lance.spark.failures import message_of

__all__ = ["ExecuteOnExecutors", "Work"]

_LOOK_SECONDS = 0.5
"""How often a change in the number of executors is noticed."""

_MOST = 1000
"""Each running task needs one thread here and one in the JVM."""


@dataclass(frozen=True)
class Work:
    """What an executor needs to run a task of one version; pickled into it, never logged."""

    uri: str
    version: int
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, task: str) -> str:
        """Run a task given as JSON; return ``{"result": …}`` or ``{"error": …}`` as JSON.

        Lance has already retried by then; a failed Spark task would only hide its message.
        """
        try:
            dataset = _open(self.uri, self.version, tuple(sorted(self.storage_options.items())))
            result = CompactionTask.from_json(task).execute(dataset)  # type: ignore[attr-defined]
        except BaseException as error:
            if not isinstance(error, LANCE_ERRORS) and not is_panic(error):
                raise
            return json.dumps({"error": str(error)})
        return json.dumps({"result": result.json()})


@lru_cache(maxsize=1)
def _open(
    uri: str, version: int, storage_options: tuple[tuple[str, str], ...]
) -> lance.LanceDataset:
    """Open a version; a Python worker keeps the handle across tasks."""
    return lance.dataset(
        uri,
        version=version,
        storage_options=dict(storage_options) or None,
        session=lance_session(),
    )


class ExecuteOnExecutors:
    """A :data:`~airflow_provider_lance.maintenance.compaction.Execute` on a session's executors.

    It runs as many tasks at once as ``spark.default.parallelism`` says, by default the cores of all
    executors.
    """

    def __init__(self, session: SparkSession, storage_options: Mapping[str, str]) -> None:
        self._context, self._storage_options = session.sparkContext, dict(storage_options)
        growing = self._context.getConf().get("spark.dynamicAllocation.enabled", "false")
        # Executors are only added while tasks wait for them.
        self._share = 2 if growing == "true" else 1

    def __call__(self, port: LanceDatasetPort, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield results in the order in which they arrive.

        A task is taken when there is room for it. After an error no further task is taken, and the
        running ones are awaited. If the caller stops iterating, they are cancelled.

        :raises OSError: Lance's own error in a task, as if it had run here.
        :raises TransientError: executors were lost repeatedly.
        """
        work = Work(port.uri, port.version, self._storage_options)
        group = f"lance-compaction-{uuid.uuid4()}"
        pending, running = iter(tasks), set[Future[Any]]()
        failed: BaseException | None = None
        pool = ThreadPoolExecutor(_MOST, thread_name_prefix="compaction")
        try:
            while True:
                room = 0 if failed else max(0, self._room() - len(running))
                for task in islice(pending, room):
                    running.add(pool.submit(self._run, work, task, group))
                if not running:
                    break
                done, running = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
                for each in done:
                    if error := each.exception():
                        failed = failed or _known(error)
                    else:
                        yield each.result()
        finally:
            if running:  # the caller has stopped iterating
                self._context.cancelJobGroup(group)
            pool.shutdown(cancel_futures=True)
        if failed:
            raise failed

    def _room(self) -> int:
        return min(_MOST, self._share * max(2, self._context.defaultParallelism))

    def _run(self, work: Work, task: Any, group: str) -> Any:
        # This thread has its own JVM thread, and so its own job group.
        about = f"Compact {len(task.fragments)} fragments of {work.uri}"
        self._context.setJobGroup(group, about, interruptOnCancel=True)
        (text,) = self._context.parallelize([task.json()], 1).map(work).collect()
        answer = json.loads(text)
        if "error" in answer:
            raise OSError(answer["error"])
        return RewriteResult.from_json(answer["result"])  # type: ignore[attr-defined]


def _known(error: BaseException) -> BaseException:
    if not isinstance(error, PySparkException | Py4JError):
        return error
    said = " ".join(message_of(error).splitlines()[:2])
    known = TransientError(
        "a compaction task failed on the executors as often as Spark allows, and nothing of it was "
        f"committed; see the executors' logs. Spark said: {said}"
    )
    known.__cause__ = error
    return known
