"""Whole maintenance runs: what is worth it, what a dry run promises, what stays when one ends."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    HistoryGapError,
    PreconditionError,
)
from airflow_provider_lance.maintenance import run as module
from airflow_provider_lance.maintenance.options import KEEP_SECONDS
from airflow_provider_lance.maintenance.run import maintain, summary_lines
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import OutputMode
from tests.support.maintenance import (
    HUNDRED,
    age,
    append,
    compacting,
    files,
    ids,
    make,
    meanwhile,
    numbers,
    options,
    run,
    sizes,
    stream,
)

STEPS = ("compact", "index", "cleanup")


def neglected(folder: Path) -> str:
    """Make a dataset that has something for every step to do."""
    uri = make(folder, 40)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for number in range(40, 60):
        append(uri, number * 10)
    return uri


def test_run_does_every_step_and_reports_the_numbers(tmp_path: Path) -> None:
    uri = neglected(tmp_path)
    report = run(uri, compaction=HUNDRED, olderThan=0).to_json()
    assert list(report["done"]) == list(STEPS)
    assert report["skipped"] == {}
    before, after = report["before"], report["after"]
    assert (before["rows"], after["rows"]) == (600, 600)
    assert (before["fragments"], before["smallFragments"], after["fragments"]) == (60, 60, 6)
    assert (before["uncoveredRows"], after["uncoveredRows"]) == (200, 0)
    assert (before["versions"], after["versions"]) == (61, 1)
    assert after["bytes"] == sum(files(f"{uri}/data").values()) < before["bytes"]
    assert after["historyBytes"] == after["manifestBytes"] < before["historyBytes"]
    assert report["done"]["compact"]["fragmentsRemoved"] == 60
    assert report["done"]["index"] == {"rows": 200, "left": {"id_idx": 0}}
    assert report["seconds"] > 0
    assert ids(uri) == Counter(range(600))


def test_a_run_that_finds_nothing_says_why_step_by_step(tmp_path: Path) -> None:
    uri = neglected(tmp_path)
    run(uri, compaction=HUNDRED, olderThan=0)
    before = files(uri)
    report = run(uri, compaction=HUNDRED, olderThan=0)
    assert report.done == {}
    assert list(report.skipped) == list(STEPS)
    assert re.search("^0 small .* 2", report.skipped["compact"])
    assert re.search("^0 rows .* 1", report.skipped["index"])
    assert re.search("^0 versions .* 0 s", report.skipped["cleanup"])
    assert files(uri) == before


@pytest.mark.parametrize(
    ("step", "given", "reason"),
    [
        ("compact", {"minSmallFragments": 61}, "60 small .* 61"),
        ("index", {"minUncoveredRows": 201}, "200 rows .* 201"),
        ("cleanup", {"minOldVersions": 61, "olderThan": 0}, "60 versions .* 61"),
        ("cleanup", {"olderThan": 3600}, "0 versions .* 3600 s"),
        ("cleanup", {"retainVersions": 99, "olderThan": 0}, "0 versions"),
    ],
)
def test_what_is_below_its_threshold_is_skipped_with_the_numbers(
    tmp_path: Path, step: str, given: dict[str, Any], reason: str
) -> None:
    uri = neglected(tmp_path)
    before = files(uri)
    report = run(uri, steps=[step], **given)
    assert report.done == {}
    assert re.search(reason, report.skipped[step])
    assert files(uri) == before
    met = {name: value - 1 if name.startswith("min") else 0 for name, value in given.items()}
    met.pop("retainVersions", None)
    assert step in run(uri, steps=[step], **met).done


def test_rows_that_were_deleted_one_by_one_do_not_outweigh_a_threshold(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    append(uri, 100, 1000)
    lance.dataset(uri).delete("id = 500")
    report = compacting(uri, minSmallFragments=50)
    assert re.search("3 small .* 50", report.skipped["compact"])


def test_many_deleted_rows_are_worth_a_compaction(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    append(uri, 100, 1000)
    lance.dataset(uri).delete("id >= 600")
    report = compacting(uri, minSmallFragments=50)
    assert report.after.deleted_rows == 0
    assert ids(uri) == Counter([*range(10), *range(100, 600)])


def test_fragments_that_are_as_large_as_the_dataset_wants_them_are_not_small(
    tmp_path: Path,
) -> None:
    uri = make(tmp_path, 8)
    lance.dataset(uri).update_config({"lance.compaction.target_rows_per_fragment": "20"})
    report = run(uri, steps=["compact"])
    assert (report.before.small_fragments, report.after.small_fragments) == (8, 0)
    assert "0 small fragments" in run(uri, steps=["compact"]).skipped["compact"]


def test_small_fragments_that_are_all_in_use_are_said_to_be(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    stream(uri, mode=OutputMode.UPDATE).step([{"id": 3, "epoch": 1}])
    report = compacting(uri)
    assert "2 are in use" in report.skipped["compact"]


def test_a_conflict_without_success_is_not_told_as_nothing_to_do(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    driver = stream(uri, mode=OutputMode.UPDATE)
    driver.step([{"id": 900, "epoch": 0}])
    upsert = meanwhile(lambda: driver.step([{"id": 3, "epoch": 1}, {"id": 13, "epoch": 1}]))
    report = compacting(uri, execute=upsert)
    assert report.done["compact"]["conflicts"] == 1
    assert report.skipped == {}


# -------------------------------------------------------------------------------- dry runs


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("live", [False, True])
def test_a_dry_run_changes_nothing_and_promises_what_the_run_then_does(
    tmp_path: Path, step: str, live: bool
) -> None:
    uri = neglected(tmp_path)
    if live:
        driver = stream(uri, mode=OutputMode.UPDATE)
        driver.step([{"id": 5, "epoch": 1}])
        driver.step([{"id": 250, "epoch": 1}])
    age(uri, KEEP_SECONDS + 60)
    given: dict[str, Any] = {"steps": [step]}
    given |= {"compaction": HUNDRED} if step == "compact" else {}
    given |= {"olderThan": 0} if step == "cleanup" else {}
    before = files(uri)
    told = run(uri, **given, dryRun=True)
    assert files(uri) == before
    assert told.dry_run
    assert told.after == told.before
    promised = told.done[step]
    done = run(uri, **given).done[step]
    if step == "compact":
        assert promised["left"] == done["tasks"] > 0
        assert promised["sourceFragments"] == done["fragmentsRemoved"]
        assert promised["hotFragments"] == done["hotFragments"] == (4 if live else 0)
    elif step == "index":
        assert promised["rows"] == done["rows"]
    else:
        assert {name: promised[name] for name in ("versions", "dataFiles", "folded")} == {
            name: done[name] for name in ("versions", "dataFiles", "folded")
        }
        assert promised["olderThan"] == (KEEP_SECONDS if live else 0)


def test_a_dry_run_of_a_bounded_run_promises_the_bounded_part(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    bounded = HUNDRED | {"max_source_fragments": 15}
    promised = compacting(uri, compaction=bounded, dryRun=True).done["compact"]
    done = compacting(uri, compaction=bounded).done["compact"]
    assert promised["sourceFragments"] == done["fragmentsRemoved"] <= 15
    assert promised["left"] == done["tasks"]


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    stream(uri).step()
    for dry in (True, False):
        with pytest.raises(PreconditionError, match="deleteUnverified"):
            run(uri, steps=["cleanup"], deleteUnverified=True, olderThan=0, dryRun=dry)


# ------------------------------------------------------------------------- ends in mid-run


def test_steps_that_the_deadline_left_are_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = neglected(tmp_path)
    times = iter([0.0, 0.0, 0.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times, 100.0)))
    report = run(uri, deadline=50, olderThan=0)
    assert "the deadline of 50 s is over" in report.skipped["cleanup"]
    monkeypatch.undo()
    run(uri, deadline=50, olderThan=0)
    assert numbers(uri) == [open_dataset(uri).version]


def test_what_a_step_has_done_stays_when_a_later_one_fails(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    driver = stream(uri)
    driver.step()
    append(uri, 5000)
    lance.dataset(uri).cleanup_old_versions(versions=[*range(1, open_dataset(uri).version)])
    with pytest.raises(HistoryGapError):
        run(uri, compaction=HUNDRED, olderThan=0)
    assert max(sizes(uri)) >= 100
    assert ids(uri) == Counter([*range(400), 0, 1, 2, *range(5000, 5010)])


@pytest.mark.parametrize("anew", [False, True])
def test_a_dataset_that_vanishes_in_mid_run_is_named(tmp_path: Path, anew: bool) -> None:
    uri = neglected(tmp_path)

    def vanish() -> None:
        shutil.rmtree(uri)
        if anew:
            make(tmp_path, 2)

    with pytest.raises(DatasetNotFoundError, match=r"t\.lance"):
        run(uri, compaction=HUNDRED, olderThan=0, execute=meanwhile(vanish))
    if anew:
        assert ids(uri) == Counter(range(20))
        assert numbers(uri) == [1, 2]


def test_a_run_in_the_middle_of_which_a_driver_is_fenced_goes_on(tmp_path: Path) -> None:
    uri, log = make(tmp_path, 20), dict[str, int]()
    stream(uri, log=log).step([{"id": 900, "epoch": 0}])
    successor = stream(uri, log=log, run_id="successor")
    step = meanwhile(lambda: successor.step([{"id": 901, "epoch": 1}]))
    report = compacting(uri, execute=step)
    assert (report.done["compact"]["conflicts"], report.done["compact"]["left"]) == (0, 0)
    successor.step([{"id": 902, "epoch": 2}])
    assert ids(uri) == Counter([*range(200), 900, 901, 902])


def test_a_cleanup_preempted_again_and_again_ends_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 3)
    tried = []

    def preempted(*args: Any) -> None:
        tried.append(args)
        raise CommitPreemptedError("a driver folded itself")

    monkeypatch.setattr(module, "clean_up", preempted)
    monkeypatch.setattr("airflow_provider_lance.protocol.backoff.time.sleep", lambda s: None)
    with pytest.raises(CommitPreemptedError, match="folded itself"):
        run(uri, steps=["cleanup"], olderThan=0)
    assert len(tried) == 5


def test_progress_is_told_and_may_end_the_run(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)
    seen: list[tuple[int, int]] = []

    class EndedError(Exception):
        pass

    def progress(done: int, tasks: int) -> None:
        seen.append((done, tasks))
        if done == 2:
            raise EndedError

    given = options(compaction=HUNDRED, steps=["compact"])
    with pytest.raises(EndedError):
        maintain(open_dataset(uri), given, on_progress=progress)
    assert seen == [(0, 4), (1, 4), (2, 4)]
    assert ids(uri) == Counter(range(400))
    assert compacting(uri).after.fragments == 4


def test_tasks_may_come_back_in_any_order(tmp_path: Path) -> None:
    uri = make(tmp_path, 40)

    def backwards(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        for task in reversed(tasks):
            yield task.execute(open_dataset(uri).dataset)

    assert compacting(uri, execute=backwards).done["compact"]["tasks"] == 4
    assert ids(uri) == Counter(range(400))


def test_an_empty_dataset_needs_nothing(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    lance.dataset(uri).delete("true")
    assert "cleanup" not in run(uri).done
    assert list(run(uri, olderThan=0).done) == ["cleanup"]
    assert numbers(uri) == [2]


def test_report_lines_show_steps_and_numbers(tmp_path: Path) -> None:
    uri = neglected(tmp_path)
    report = run(uri, steps=["compact", "index"], compaction=HUNDRED, dryRun=True).to_json()
    told = list(summary_lines(report))
    assert told[0].startswith("Would do: compact.")
    report = run(uri, compaction=HUNDRED).to_json()
    text = "\n".join(summary_lines(report))
    assert "Done: compact." in text
    assert re.search(r"Skipped: cleanup\. 0 versions .* 604800 s", text)
    fragments = next(line for line in text.splitlines() if "fragments " in line)
    assert fragments.split() == ["fragments", "60", "->", "6"]
