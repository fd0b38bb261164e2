"""LanceOptimizeOperator with the local engine, on real datasets."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators import optimize
from airflow_provider_lance.operators.optimize import LanceOptimizeOperator
from tests.support.consumers import READER, leave
from tests.support.maintenance import HUNDRED, age, files, ids, make, numbers, sizes, stream

from .conftest import SECRET, AddConnection, Shown, TaskInstance


def operator(uri: str, **changes: Any) -> LanceOptimizeOperator:
    arguments = {"task_id": "optimize", "uri": uri, "lance_conn_id": None, "compaction": HUNDRED}
    return LanceOptimizeOperator(**(arguments | changes))


def run(ti: TaskInstance, uri: str, **changes: Any) -> dict[str, Any]:
    context: Any = {"ti": ti}
    return operator(uri, **changes).execute(context)


def test_a_run_returns_its_numbers_and_shows_them(
    tmp_path: Path, ti: TaskInstance, shown: Shown
) -> None:
    uri = make(tmp_path, 40)
    report = run(ti, uri, older_than=timedelta(0))
    assert json.loads(json.dumps(report)) == report, "fit for XCom"
    assert list(report["done"]) == ["compact", "cleanup"]
    assert report["after"]["fragments"] == 4
    assert sizes(uri) == [100] * 4
    assert len(numbers(uri)) == 1
    text = shown()
    assert "Compacting. task=4 of 4" in text
    assert "Done: compact." in text
    assert "Skipped: index. 0 rows" in text


def test_nothing_to_do_is_a_skip_with_the_reasons_and_the_numbers(
    tmp_path: Path, ti: TaskInstance
) -> None:
    uri = make(tmp_path, 1)
    with pytest.raises(AirflowSkipException, match="compact: 1 small.*index: 0.*cleanup: 0"):
        run(ti, uri)
    assert ti.xcoms["return_value"]["before"]["rows"] == 10


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"min_small_fragments": 9, "steps": ["compact"]}, "fewer than 9"),
        ({"min_old_versions": 9, "steps": ["cleanup"], "compaction": None}, "fewer than 9"),
        ({"min_uncovered_rows": 9, "steps": ["index"], "compaction": None}, "fewer than 9"),
    ],
)
def test_operator_skips_below_its_thresholds(
    tmp_path: Path, ti: TaskInstance, changes: dict[str, Any], reason: str
) -> None:
    uri = make(tmp_path, 8)
    with pytest.raises(AirflowSkipException, match=reason):
        run(ti, uri, **changes)


def test_a_dry_run_is_never_a_skip_and_changes_nothing(tmp_path: Path, ti: TaskInstance) -> None:
    uri = make(tmp_path, 40)
    before = files(uri)
    report = run(ti, uri, dry_run=True, older_than=timedelta(0))
    assert report["dryRun"]
    assert report["done"]["compact"]["sourceFragments"] == 40
    assert report["done"]["cleanup"]["versions"] == 39
    assert files(uri) == before
    assert run(ti, make(tmp_path, 1, name="tidy.lance"), dry_run=True)["done"] == {}


def test_a_consumer_holds_versions_back_for_the_retention(tmp_path: Path, ti: TaskInstance) -> None:
    uri = make(tmp_path, 4)
    leave(uri, 2, ago=3600)
    cleanup = {"steps": ["cleanup"], "compaction": None, "older_than": timedelta(0)}
    assert run(ti, uri, **cleanup)["done"]["cleanup"]["held"] == {READER: 3}
    report = run(ti, uri, **cleanup, consumer_retention=timedelta(minutes=30))
    assert (report["done"]["cleanup"]["versions"], len(report["warnings"])) == (3, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": ["vacuum"]}, "vacuum"),
        ({"steps": []}, r"\[\]"),
        ({"steps": ["index"]}, r"\['compaction'\] .*'compact'.*\['index'\]"),
        ({"steps": ["compact"], "older_than": timedelta(0)}, r"\['olderThan'\].*\['compact'\]"),
        ({"compaction": {"target": 1}}, r"unknown \['target'\]"),
        ({"compaction": {"compaction_mode": "bogus"}}, "bogus"),
        ({"older_than": 7}, "older_than must be .*7"),
        ({"older_than": timedelta(days=-1)}, "older_than must be"),
        ({"consumer_retention": 7}, "consumer_retention must be .*7"),
        (
            {"steps": ["compact"], "consumer_retention": timedelta(1)},
            r"\['consumerRetention'\].*\['compact'\]",
        ),
        ({"deadline": timedelta(0)}, "deadline must be .*0"),
        ({"retain_versions": 0}, "retainVersions"),
        ({"delete_rate_limit": -1}, "deleteRateLimit.*-1"),
        ({"engine": "cloud"}, "engine must be 'local' or 'spark', got 'cloud'"),
    ],
)
def test_bad_input_fails_without_a_retry_and_touches_nothing(
    tmp_path: Path, ti: TaskInstance, changes: dict[str, Any], said: str
) -> None:
    uri = make(tmp_path, 4)
    before = files(uri)
    with pytest.raises(SpecError, match=said):
        operator(uri, **changes)
    task, context = operator(uri), {"ti": ti}
    for name, value in changes.items():  # as its templates were rendered
        setattr(task, "_dry_run" if name == "dry_run" else name, value)
    with pytest.raises(AirflowFailException, match=said):
        task.execute(context)  # type: ignore[arg-type]
    assert files(uri) == before


def test_a_mapped_tasks_mistake_fails_without_a_retry(tmp_path: Path, ti: TaskInstance) -> None:
    """Airflow retries what is raised while it makes the mapped task's operator."""
    mapped = LanceOptimizeOperator.partial(task_id="optimize", lance_conn_id=None)
    task = mapped.expand(uri=["relative.lance"]).unmap({"uri": "relative.lance"})
    context: Any = {"ti": ti}
    with pytest.raises(AirflowFailException, match="relative name"):
        task.execute(context)


def test_templated_arguments_are_not_checked_before_they_are_rendered() -> None:
    operator(
        "{{ params.uri }}",
        steps=["{{ params.step }}"],
        engine="{{ params.engine }}",
        conf={"spark.yarn.submit.waitAppCompletion": "{{ params.wait }}"},
    )


def test_a_dataset_that_is_not_there_fails_without_a_retry(
    tmp_path: Path, ti: TaskInstance
) -> None:
    with pytest.raises(AirflowFailException, match=r"^DatasetNotFoundError: .*nothing\.lance"):
        run(ti, str(tmp_path / "nothing.lance"))
    assert not (tmp_path / "nothing.lance").exists()


def test_unverified_files_are_refused_beside_an_active_stream(
    tmp_path: Path, ti: TaskInstance
) -> None:
    uri = make(tmp_path, 4)
    stream(uri).step()
    with pytest.raises(AirflowFailException, match=r"deleteUnverified.*\['orders'\]"):
        run(ti, uri, steps=["cleanup"], compaction=None, delete_unverified=True)


def test_beside_a_live_stream_the_young_versions_stay(tmp_path: Path, ti: TaskInstance) -> None:
    uri = make(tmp_path, 10)
    driver = stream(uri)
    driver.step([{"id": 900, "epoch": 0}])
    age(uri, 3600, range(1, 6))
    report = run(ti, uri, older_than=timedelta(0))
    assert report["done"]["cleanup"]["versions"] == 5
    assert report["done"]["cleanup"]["olderThan"] == 600
    driver.step([{"id": 901, "epoch": 1}])
    assert ids(uri) == Counter([*range(100), 900, 901])


def test_storage_options_of_the_connection_reach_the_store_only(
    tmp_path: Path, ti: TaskInstance, add_connection: AddConnection, shown: Shown
) -> None:
    make(tmp_path, 4)
    add_connection(
        "lance_here",
        conn_type="lance",
        extra={"base_uri": str(tmp_path), "storage_options": {"secret_access_key": SECRET}},
    )
    report = run(ti, "t.lance", lance_conn_id="lance_here")
    assert report["after"]["fragments"] == 1
    assert SECRET not in json.dumps(report) + shown() + json.dumps(ti.xcoms)


def test_a_task_that_is_killed_begins_no_further_task(
    tmp_path: Path, ti: TaskInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 40)
    task = operator(uri)
    context: Any = {"ti": ti}
    told = []
    real = task.log.info

    def info(message: str, *args: Any) -> None:
        real(message, *args)
        told.append(args)
        if args == (2, 4):
            task.on_kill()

    monkeypatch.setattr(task.log, "info", info)
    with pytest.raises(AirflowException, match="ended"):
        task.execute(context)
    assert (3, 4) not in told
    assert lance.dataset(uri).count_rows() == 400
    assert operator(uri).execute(context)["after"]["fragments"] == 4


def test_on_kill_before_the_run_does_nothing(tmp_path: Path) -> None:
    operator(str(tmp_path / "t.lance")).on_kill()


def test_the_link_to_the_dataset_is_there_although_the_run_is_skipped(
    tmp_path: Path, ti: TaskInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "dataset_url", lambda uri, endpoint: f"https://console{uri}")
    uri = make(tmp_path, 1)
    with pytest.raises(AirflowSkipException):
        run(ti, uri)
    assert ti.xcoms["lance_dataset"] == f"https://console{uri}"
