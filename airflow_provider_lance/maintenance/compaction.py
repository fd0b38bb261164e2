"""Merge many small fragments into few large ones, beside writers; repeat only what conflicts undid.

A compaction lands beside appends. It conflicts with an upsert or a delete that touched the same
fragments, and the one that commits second fails. So fragments that a live upsert touches are left
alone, and each task can be committed on its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, is_conflict, read_error
from airflow_provider_lance.protocol.model import OutputMode, OwnerState
from airflow_provider_lance.protocol.watermark import exact_watermark

if TYPE_CHECKING:
    from lance.optimize import CompactionOptions

__all__ = ["Compacted", "Execute", "compact", "execute_here", "hot_fragments", "plan_compaction"]

log = logging.getLogger(__name__)

_ROUNDS = 5
_BOUNDS = ("max_source_fragments", "max_source_rows", "max_source_bytes")

Execute = Callable[[LanceDatasetPort, Sequence[Any]], Iterable[Any]]
"""Runs pylance's compaction tasks of one version and yields their results as they arrive."""


@dataclass(frozen=True, slots=True)
class Compacted(JsonRecord):
    """The result of a compaction.

    ``conflicts`` counts tasks that a writer's commit undid, ``left`` those that were planned and
    not done when the time was up or the rounds were over.
    """

    tasks: int = 0
    conflicts: int = 0
    left: int = 0
    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    hot_fragments: int = 0
    timed_out: bool = False

    def with_commit(self, metrics: Any, tasks: int) -> Compacted:
        """Return this with the metrics of one commit of some tasks added."""
        return replace(
            self,
            tasks=self.tasks + tasks,
            fragments_removed=self.fragments_removed + metrics.fragments_removed,
            fragments_added=self.fragments_added + metrics.fragments_added,
            files_removed=self.files_removed + metrics.files_removed,
            files_added=self.files_added + metrics.files_added,
        )


def execute_here(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
    """Run tasks one after the other in this process; Lance uses all cores for each."""
    for task in tasks:
        yield task.execute(port.dataset)


def plan_compaction(port: LanceDatasetPort, options: Mapping[str, Any], hot: set[int]) -> list[Any]:
    """Return pylance's tasks, oldest fragments first, without the hot fragments.

    Lance's own bounds (``max_source_fragments`` and the like) count whole tasks, and a task is a
    run of neighbours up to the target size. If the first task exceeds the bound, Lance never plans
    anything (seen on pylance 14.0.2). So a task is cut to what fits.

    :raises SpecError: an option has a value that pylance does not accept.
    """
    bounds = {name: int(options[name]) for name in _BOUNDS if options.get(name)}
    free = {name: value for name, value in options.items() if name not in _BOUNDS}
    excluded = hot | set(options.get("excluded_fragment_ids") or ())
    tasks = _plan(port, free, excluded)
    if not bounds:
        return tasks
    taken = _fitting(tasks, bounds)
    everything = {fragment.fragment_id for fragment in port.dataset.get_fragments()}
    # An excluded fragment is a boundary between its neighbours.
    return _plan(port, free, everything - taken) if taken else []


def _plan(port: LanceDatasetPort, options: Mapping[str, Any], excluded: set[int]) -> list[Any]:
    from lance.optimize import Compaction

    chosen = {**options, **({"excluded_fragment_ids": sorted(excluded)} if excluded else {})}
    try:
        return list(Compaction.plan(port.dataset, cast("CompactionOptions", chosen)).tasks)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"compaction options {dict(options)}: {error}") from error
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error


def _fitting(tasks: Sequence[Any], bounds: Mapping[str, int]) -> set[int]:
    """Return the ids of the oldest fragments that are worth a task and within the bounds."""
    used: Counter[str] = Counter()
    taken: set[int] = set()
    for task in tasks:
        fitting = []
        for fragment in task.fragments:
            size = {
                "max_source_fragments": 1,
                "max_source_rows": fragment.physical_rows - fragment.num_deletions,
                "max_source_bytes": sum(file.file_size_bytes or 0 for file in fragment.files),
            }
            if any(used[name] + size[name] > limit for name, limit in bounds.items()):
                break
            used.update(size)
            fitting.append(fragment.id)
        whole = len(fitting) == len(task.fragments)
        if len(fitting) > 1 or whole:
            taken |= set(fitting)
        if not whole:
            break
    return taken


def hot_fragments(port: LanceDatasetPort) -> set[int]:
    """Return the fragments that live upserts have touched since their last fold.

    The next epoch is likely to touch what the last ones touched; if it were compacted, one of the
    two commits would fail.
    """
    queries = query_ids(port.config)
    versions = [stamp.version for query_id in queries for stamp in _upserts(port, query_id)]
    first = min(versions, default=None)
    if first is None:
        return set()
    try:
        before = port.dataset.checkout_version(first - 1).get_fragments()
    except LANCE_ERRORS:
        return set()  # cleaned up: nothing is known, and a conflict costs one round
    deleted = {each.fragment_id: each.metadata.num_deletions for each in before}
    return {
        each.fragment_id
        for each in port.dataset.get_fragments()
        if deleted.get(each.fragment_id) != each.metadata.num_deletions
    }


def _upserts(port: LanceDatasetPort, query_id: str) -> Iterator[Any]:
    owner = decode_query(port.config, query_id, port.version).owner
    if owner is None or owner.state is not OwnerState.ACTIVE:
        return
    for stamp in exact_watermark(port, query_id).stamps:
        if OutputMode(stamp.mode).effect.replaces_rows:
            yield stamp


def compact(
    port: LanceDatasetPort,
    options: Mapping[str, Any],
    *,
    execute: Execute = execute_here,
    is_over: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] = lambda done, tasks: None,
) -> Compacted:
    """Compact once, within the bounds that the options give; return what was done.

    :param is_over: asked before each task; once it returns true, no further task is started.
    :param on_progress: called with the tasks done and those planned.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer. What was committed stays.
    """
    done, again, gone = Compacted(), None, None
    for _ in range(_ROUNDS):
        port = port.latest()
        hot = hot_fragments(port)
        tasks = plan_compaction(port, options, hot)
        if again is not None:  # only what a conflict undid
            tasks = [task for task in tasks if again & set(_ids(task))]
        done = replace(done, hot_fragments=len(hot), left=len(tasks))
        if not tasks:
            gone = None  # another compaction did it
            break
        results, gone = _run(port, tasks, execute, is_over, on_progress)
        conflicts = done.conflicts
        results.sort(key=lambda result: min(_source(result)))  # rows keep their order
        done, again = _commit(port, results, done, options)
        left = len(tasks) - len(results) + done.conflicts - conflicts
        done = replace(done, left=left, timed_out=is_over())
        if gone:  # plan again what it was to be part of
            again |= {fragment for task in tasks for fragment in _ids(task)}
        if not again or done.timed_out:
            break
    if gone and not done.timed_out:
        raise gone
    return done


def _run(
    port: LanceDatasetPort,
    tasks: Sequence[Any],
    execute: Execute,
    is_over: Callable[[], bool],
    on_progress: Callable[[int, int], None],
) -> tuple[list[Any], StorageUnavailableError | None]:
    """Run tasks; return their results, and the error if a source file no longer existed."""
    results: list[Any] = []
    on_progress(0, len(tasks))
    try:
        if not is_over():
            for result in execute(port, tasks):
                results.append(result)
                on_progress(len(results), len(tasks))
                if is_over():
                    break
    except LANCE_ERRORS as error:
        # A writer and a cleanup removed a file meanwhile: what is done counts, and the next plan
        # will not include it.
        if "not found:" not in str(error).lower():
            raise read_error(port.uri, error) from error
        port.latest()  # raises if the dataset itself is gone
        gone = StorageUnavailableError(f"a file of {port.uri} no longer exists: {error}")
        log.warning("A task's source file no longer exists. error=%s", gone)
        return results, gone
    return results, None


def _commit(
    port: LanceDatasetPort, results: list[Any], done: Compacted, options: Mapping[str, Any]
) -> tuple[Compacted, set[int]]:
    """Commit results together, or one by one after a conflict; return the fragments to redo."""
    lost: set[int] = set()
    if not results:
        return done, lost
    try:
        return done.with_commit(_commit_some(port, results, options), len(results)), lost
    except CommitPreemptedError:
        if len(results) == 1:
            return replace(done, conflicts=done.conflicts + 1), _source(results[0])
    for result in results:
        port = port.latest()
        try:
            done = done.with_commit(_commit_some(port, [result], options), 1)
        except CommitPreemptedError as error:
            log.info("Preempted by a writer, to be repeated. error=%s", error)
            done = replace(done, conflicts=done.conflicts + 1)
            lost |= _source(result)
    return done, lost


def _commit_some(port: LanceDatasetPort, results: list[Any], options: Mapping[str, Any]) -> Any:
    from lance.optimize import Compaction

    _refuse_what_is_gone(port, results)
    try:
        chosen = cast("CompactionOptions", dict(options))
        return Compaction.commit(port.dataset, results, chosen)
    except LANCE_ERRORS as error:
        if is_conflict(error):
            raise CommitPreemptedError(str(error).splitlines()[0]) from error
        known = read_error(port.uri, error)
        if isinstance(known, StorageUnavailableError):
            raise StorageUnavailableError(
                f"a compaction's commit on version {port.version} of {port.uri} ended in: {error}. "
                "It landed whole or not at all; run it again"
            ) from error
        raise known from error


def _refuse_what_is_gone(port: LanceDatasetPort, results: list[Any]) -> None:
    """Raise unless all rewritten files are still in the dataset.

    Lance commits the rewrite of a dataset that was dropped and recreated meanwhile, and the new
    one's data is lost (seen on pylance 14.0.2). Files have random names, which identify them.
    """
    # Open it again: a live handle may show an earlier version from its cache.
    newest = open_dataset(port.uri, port.storage_options)
    if newest.version < port.version:
        raise DatasetNotFoundError(
            f"{port.uri} was at version {port.version} and is at {newest.version}: it was dropped "
            "and created again during the run; nothing was committed to it"
        )
    there = {file.path for each in newest.dataset.get_fragments() for file in each.metadata.files}
    sources = {
        file.path
        for result in results
        for fragment in result.original_fragments
        for file in fragment.files
    }
    if not sources <= there:
        raise CommitPreemptedError(
            f"{len(sources - there)} of the files that were rewritten are no longer part of "
            f"{port.uri} at version {newest.version}"
        )


def _ids(task: Any) -> list[int]:
    return [fragment.id for fragment in task.fragments]


def _source(result: Any) -> set[int]:
    return {fragment.id for fragment in result.original_fragments}
