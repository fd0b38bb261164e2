"""Compaction on real datasets: bounded, beside writers, and never at a row's cost."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.optimize import Compaction

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    LanceStreamError,
    SpecError,
    StorageUnavailableError,
    TransientError,
)
from airflow_provider_lance.maintenance.compaction import (
    Compacted,
    compact,
    execute_here,
    hot_fragments,
    plan_compaction,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.drivers import QUERY
from tests.support.maintenance import (
    HUNDRED,
    append,
    files,
    ids,
    make,
    meanwhile,
    rows,
    sizes,
    stream,
)

UPSERT = OutputMode.UPDATE


def plan_of(uri: str, **given: Any) -> list[list[int]]:
    """Return the ids of the fragments of each task that would run."""
    port = open_dataset(uri)
    tasks = plan_compaction(port, HUNDRED | given, hot_fragments(port))
    return [[fragment.id for fragment in task.fragments] for task in tasks]


def compacted(uri: str, *, execute: Any = execute_here, **given: Any) -> Compacted:
    return compact(open_dataset(uri), HUNDRED | given, execute=execute)


def lose(uri: str, ids_to_delete: str) -> Callable[[], Any]:
    return lambda: lance.dataset(uri).delete(ids_to_delete)


def test_many_small_fragments_become_few_with_the_same_rows(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    done = compacted(uri)
    assert done == Compacted(
        tasks=4, fragments_removed=40, fragments_added=4, files_removed=40, files_added=4
    )
    assert sizes(uri) == [100] * 4
    assert ids(uri) == Counter(range(400))
    assert compacted(uri) == Compacted()


def test_the_datasets_own_settings_hold_for_what_is_left_out(tmp_path: Path) -> None:
    uri = make(tmp_path, 8)
    lance.dataset(uri).update_config({"lance.compaction.target_rows_per_fragment": "20"})
    assert compact(open_dataset(uri), {}).tasks == 4
    assert sizes(uri) == [20] * 4
    assert compact(open_dataset(uri), {"target_rows_per_fragment": 40}).tasks == 2
    assert sizes(uri) == [40] * 2


# -------------------------------------------------------------------------------- bounded runs


@pytest.mark.parametrize(
    "bound",
    [
        {"max_source_fragments": 10},
        {"max_source_rows": 100},
        {"max_source_bytes": "ten fragments"},
    ],
)
def test_a_bounded_run_does_the_oldest_and_the_next_one_goes_on(
    tmp_path: Path, bound: dict[str, Any]
) -> None:
    uri = make(tmp_path, 40)
    if "max_source_bytes" in bound:
        bound = {"max_source_bytes": sum(sorted(files(f"{uri}/data").values())[-10:])}
    expected = [[100] * runs + [10] * (40 - 10 * runs) for runs in range(1, 5)]
    for after in expected:
        assert plan_of(uri, **bound)[0][0] == min(
            fragment.fragment_id
            for fragment in lance.dataset(uri).get_fragments()
            if fragment.count_rows() < 100
        )
        done = compacted(uri, **bound)
        assert (done.tasks, done.fragments_removed, done.left) == (1, 10, 0)
        assert sorted(sizes(uri)) == sorted(after)
        assert ids(uri) == Counter(range(400))
    assert compacted(uri, **bound).tasks == 0


def test_a_run_that_is_over_ends_between_two_tasks_and_keeps_what_is_done(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    seen: list[tuple[int, int]] = []
    answers = iter([False] * 3)  # three looks before the time is up
    done = compact(
        open_dataset(uri),
        HUNDRED,
        is_over=lambda: next(answers, True),
        on_progress=lambda *progress: seen.append(progress),
    )
    assert (done.tasks, done.left, done.timed_out) == (3, 1, True)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert sorted(sizes(uri)) == [10] * 10 + [100] * 3
    again = compacted(uri)
    assert (again.tasks, again.left, again.timed_out) == (1, 0, False)
    assert ids(uri) == Counter(range(400))


def test_a_run_that_is_over_before_its_first_task_begins_nothing(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    before = files(uri)
    done = compact(open_dataset(uri), HUNDRED, is_over=lambda: True)
    assert (done.tasks, done.left, done.timed_out) == (0, 2, True)
    assert files(uri) == before


# ----------------------------------------------------------------------------------- conflicts


def test_appends_never_conflict(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    done = compacted(uri, execute=meanwhile(lambda: append(uri, 900)))
    assert (done.tasks, done.conflicts, done.left) == (2, 0, 0)
    assert sorted(sizes(uri)) == [10, 100, 100]
    assert ids(uri) == Counter([*range(200), *range(900, 910)])


def test_compaction_repeats_only_the_task_that_a_delete_preempted(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    ran: list[list[int]] = []
    lost = [lose(uri, "id = 250")]

    def execute(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        ran.extend([fragment.id for fragment in task.fragments] for task in tasks)
        yield from meanwhile(*([lost.pop()] if lost else []))(port, tasks)

    done = compacted(uri, execute=execute)
    assert (done.tasks, done.conflicts, done.left) == (4, 1, 0)
    assert ran == [[*range(n, n + 10)] for n in (0, 10, 20, 30)] + [[*range(20, 30)]]
    assert ids(uri) == Counter(set(range(400)) - {250})
    assert sorted(sizes(uri)) == [99, 100, 100, 100]


def test_a_row_deleted_while_tasks_run_stays_deleted(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    compacted(uri, execute=meanwhile(lose(uri, "id < 5"), lose(uri, "id = 7 or id = 107")))
    assert ids(uri) == Counter(set(range(5, 200)) - {7, 107})


def test_an_upsert_that_lands_while_tasks_run_is_not_undone(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    driver = stream(uri, mode=UPSERT)
    upserts = [lambda n=n: driver.step([{"id": n, "epoch": 5}]) for n in (3, 103)]
    done = compacted(uri, execute=meanwhile(*upserts))
    assert done.conflicts > 0
    assert ids(uri) == Counter(range(200))
    table = lance.dataset(uri).to_table(filter="epoch = 5")
    assert sorted(table.column("id").to_pylist()) == [3, 103]


def test_a_writer_that_never_lets_it_through_leaves_what_is_reported(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    deletes = [lose(uri, f"id = {n} or id = {100 + n}") for n in range(20)]
    done = compacted(uri, execute=meanwhile(*deletes))
    assert (done.tasks, done.timed_out) == (0, False)
    assert done.left > 0
    assert done.conflicts >= 5
    assert ids(uri) == Counter(n for n in range(200) if n % 100 > 4)


def test_two_compactions_at_once_do_the_work_once(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    done = compacted(uri, execute=meanwhile(lambda: compacted(uri)))
    assert (done.tasks, done.left) == (0, 0)
    assert done.conflicts == 2
    assert sizes(uri) == [100, 100]
    assert ids(uri) == Counter(range(200))


def test_a_table_overwritten_while_tasks_run_stays_as_overwritten(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)

    def overwrite() -> None:
        lance.write_dataset(rows(1000, 7), uri, mode="overwrite")

    done = compacted(uri, execute=meanwhile(overwrite))
    assert ids(uri) == Counter(range(1000, 1007))
    assert done.conflicts == 2


@pytest.mark.parametrize("defer", [False, True])
def test_a_stream_restarts_over_a_compaction_of_an_indexed_table(
    tmp_path: Path, defer: bool
) -> None:
    uri, log = make(tmp_path, 20), dict[str, int]()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    stream(uri, log=log).step([{"id": 900, "epoch": 0}])
    log["committed"] = -1  # killed before Spark logged it
    compacted(uri, defer_index_remap=defer)
    assert exact_watermark(open_dataset(uri), QUERY).epoch == 0
    successor = stream(uri, log=log, run_id="successor")
    assert successor.step([{"id": 900, "epoch": 0}]).decision is not Decision.FULL_COMMIT
    assert ids(uri) == Counter([*range(200), 900])


# --------------------------------------------------------------------------- hot fragments


def test_fragments_that_a_live_upsert_touched_are_left_alone(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    driver = stream(uri, mode=UPSERT)
    driver.step([{"id": 0, "epoch": 1}])
    driver.step([{"id": 250, "epoch": 2}])
    hot = hot_fragments(open_dataset(uri))
    assert {0, 25} < hot, "the two it took rows from"
    assert len(hot) == 4, "and the two it wrote"
    touched = {fragment for task in plan_of(uri) for fragment in task}
    assert not touched & hot
    done = compacted(uri, execute=meanwhile(lambda: driver.step([{"id": 250, "epoch": 3}])))
    assert (done.conflicts, done.hot_fragments) == (0, 4)
    assert done.fragments_removed == 38
    assert ids(uri) == Counter(range(400))


@pytest.mark.parametrize("end", ["release", "fold"])
def test_what_an_upsert_touched_is_not_hot_for_ever(tmp_path: Path, end: str) -> None:
    uri = make(tmp_path, 20)
    driver = stream(uri, mode=UPSERT, every=2)
    driver.step([{"id": 0, "epoch": 1}])
    assert hot_fragments(open_dataset(uri))
    if end == "release":
        assert driver.committer.release()
    else:
        driver.step([{"id": 0, "epoch": 2}])
    assert hot_fragments(open_dataset(uri)) == set()


def test_appended_fragments_are_not_hot(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    stream(uri).step([{"id": 900, "epoch": 1}])
    assert hot_fragments(open_dataset(uri)) == set()


def test_fragments_of_both_upserts_are_hot(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    one = stream(uri, mode=UPSERT, query_id="one")
    other = stream(uri, mode=UPSERT, query_id="other")
    one.step([{"id": 0, "epoch": 1}])
    other.step([{"id": 100, "epoch": 1}])
    assert {0, 10} < hot_fragments(open_dataset(uri))


def test_no_fragment_is_hot_when_the_version_before_is_gone(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    driver = stream(uri, mode=UPSERT)
    driver.step([{"id": 0, "epoch": 1}])
    lance.dataset(uri).cleanup_old_versions(versions=[*range(1, open_dataset(uri).version)])
    assert hot_fragments(open_dataset(uri)) == set()


def test_excluded_fragments_stay_beside_the_hot_ones(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    stream(uri, mode=UPSERT).step([{"id": 0, "epoch": 1}])
    given = {"excluded_fragment_ids": [7]}
    touched = {fragment for task in plan_of(uri, **given) for fragment in task}
    assert touched
    assert not touched & {0, 7, 20}


# ------------------------------------------------------------------------ what goes wrong


def test_a_task_that_fails_leaves_the_rows_as_they_were(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)

    def fail(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        yield tasks[0].execute(port.dataset)
        raise OSError("the executor was lost")

    with pytest.raises(StorageUnavailableError, match="the executor was lost"):
        compacted(uri, execute=fail)
    assert ids(uri) == Counter(range(400))
    assert compacted(uri).left == 0
    assert sizes(uri) == [100] * 4


def test_compaction_loses_only_tasks_whose_fragments_are_gone(tmp_path: Path) -> None:
    """Another compaction and a cleanup that keeps nothing, between plan and execution."""
    uri = make(tmp_path, 40)
    interfered = []

    def execute(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        yield tasks[0].execute(port.dataset)
        if not interfered:
            interfered.append(True)
            Compaction.execute(
                lance.dataset(uri), {**HUNDRED, "excluded_fragment_ids": [*range(10)]}
            )
            newest = lance.dataset(uri).version
            lance.dataset(uri).cleanup_old_versions(versions=[*range(1, newest)])
        for task in tasks[1:]:
            yield task.execute(open_dataset(uri).dataset)

    done = compacted(uri, execute=execute)
    assert not done.timed_out
    assert done.left == 0
    assert sizes(uri) == [100] * 4
    assert ids(uri) == Counter(range(400))


def test_a_data_file_lost_for_good_is_an_error_with_its_name(tmp_path: Path) -> None:
    uri = make(tmp_path, 20)
    lost = Path(uri, "data", lance.dataset(uri).get_fragments()[15].metadata.files[0].path)
    os.remove(lost)
    with pytest.raises(LanceStreamError, match=lost.name):
        compacted(uri)


@pytest.mark.parametrize("anew", [0, 3, 20, 60])
def test_compaction_commits_nothing_when_the_dataset_was_dropped_meanwhile(
    tmp_path: Path, anew: int
) -> None:
    uri = make(tmp_path, 20)

    def drop() -> None:
        shutil.rmtree(uri)
        for number in range(anew):
            mode = "append" if number else "create"
            lance.write_dataset(rows(5000 + number, 1), uri, mode=mode)

    if anew < 20:
        with pytest.raises(DatasetNotFoundError, match="t.lance"):
            compacted(uri, execute=meanwhile(drop))
    else:
        # It has as many versions as the old one, or more: only its files tell them apart.
        with suppress(StorageUnavailableError):
            compacted(uri, execute=meanwhile(drop))
    if anew:
        assert ids(uri) == Counter(range(5000, 5000 + anew))
    else:
        assert not Path(uri, "_versions").exists()


def test_refused_compaction_commit_is_a_transient_error_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 20)

    def refuse(*args: Any) -> None:
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "commit", staticmethod(refuse))
        version = open_dataset(uri).version
        with pytest.raises(TransientError, match=f"version {version} .*connection reset"):
            compacted(uri)
    assert compacted(uri).tasks == 2


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_store_that_fails_while_compaction_is_planned_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    port = open_dataset(make(tmp_path, 20))

    def fail(*args: Any) -> None:
        raise kind("connection reset")

    monkeypatch.setattr(Compaction, "plan", staticmethod(fail))
    with pytest.raises(StorageUnavailableError, match="connection reset"):
        plan_compaction(port, HUNDRED, set())


@pytest.mark.parametrize("kind", [OSError, ValueError, RuntimeError])
def test_a_store_that_fails_while_a_task_runs_is_unavailable(
    tmp_path: Path, kind: type[Exception]
) -> None:
    uri = make(tmp_path, 20)

    def fail(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        yield tasks[0].execute(port.dataset)
        raise kind("connection reset")

    with pytest.raises(StorageUnavailableError, match="connection reset"):
        compacted(uri, execute=fail)
    assert ids(uri) == Counter(range(200))


@pytest.mark.parametrize(
    "given",
    [
        {"compaction_mode": "bogus"},
        {"materialize_deletions": "yes"},
        {"excluded_fragment_ids": [-1]},
        {"target_rows_per_fragment": 2**70},
    ],
)
def test_options_that_only_lance_can_judge_are_refused_by_name(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    uri = make(tmp_path, 2)
    with pytest.raises(SpecError) as caught:
        compact(open_dataset(uri), given)
    assert next(iter(given)) in str(caught.value)
