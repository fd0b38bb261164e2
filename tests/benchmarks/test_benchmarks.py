"""The benchmarks' own tools, and each contestant without Spark: a figure is worth what they are."""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance.fragment import write_fragments

from benchmarks import __main__ as command
from benchmarks.contestants import FLOOR, OURS, RIVALS, TABLES
from benchmarks.contestants.classic import Classic
from benchmarks.contestants.table import QUERY, Facts, Table
from benchmarks.contestants.words import stamp, watermark_key
from benchmarks.freshness import COLUMN, Reader
from benchmarks.harness import machine
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.measure import percentile, summary, timed
from benchmarks.harness.plots import Bars, Lines, draw
from benchmarks.harness.race import Racer, note_windows
from benchmarks.harness.scale import Scale
from benchmarks.harness.sheet import Sheet, write
from benchmarks.harness.spark import SCHEMA, add_files, durations, rows
from benchmarks.harness.turns import by_turns
from benchmarks.publish import KEPT, PAGE, publish

ROWS = 40


# ---------------------------------------------------------------------------------------- sheets


def a_sheet() -> Sheet:
    sheet = Sheet("E9", "A test", {"epochs": 3})
    sheet.add("commit_p50", 2.34567, "ms", contestant="lance-stream", epochs="1-3")
    sheet.add("fragments", 123_456, "fragments")
    sheet.ratio("commit_p50", of="lance-stream", to="bare", value=1.0 / 3)
    sheet.claim("commit p50", value=1.01, limit=1.0)
    sheet.claim("rows per second", value=1.2, limit=1.2, atleast=True)
    sheet.plots.append("e9")
    return sheet


def test_results_as_json_have_ratios_first_and_say_which_claims_hold(tmp_path: Path) -> None:
    write([a_sheet()], tmp_path, {"commit": "abc", "machine": {"cores": 2}})
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["commit"] == "abc"
    (experiment,) = told["experiments"]
    assert (experiment["name"], experiment["settings"]) == ("E9", {"epochs": 3})
    assert experiment["figures"][0] == {
        "figure": "commit_p50",
        "value": 0.3333,
        "unit": "ratio",
        "of": "lance-stream",
        "to": "bare",
    }
    assert [each["value"] for each in experiment["figures"][1:]] == [2.346, 123_456]
    assert [(each["claim"], each["holds"]) for each in experiment["claims"]] == [
        ("commit p50", False),
        ("rows per second", True),
    ]
    assert experiment["plots"] == ["e9"]


def test_results_as_csv_have_a_line_for_each_figure(tmp_path: Path) -> None:
    write([a_sheet(), Sheet("E8", "Nothing", {})], tmp_path, {})
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["unit"] for line in lines] == ["ratio", "ms", "fragments"]
    assert lines[1] == {
        "experiment": "E9",
        "figure": "commit_p50",
        "value": "2.346",
        "unit": "ms",
        "labels": "contestant=lance-stream;epochs=1-3",
    }


# --------------------------------------------------------------------------------- times and turns


def test_a_percentile_lies_between_two_values_if_need_be() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert percentile(values, 0.5) == 2.5
    assert percentile(values, 0.9) == pytest.approx(3.7)
    assert percentile([7.0], 0.9) == 7.0
    assert summary(values) == {"p50": 2.5, "p90": pytest.approx(3.7), "n": 4}
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_timed_runs_the_action_and_tells_milliseconds() -> None:
    ran = []
    assert timed(lambda: ran.append(1)) >= 0
    assert ran == [1]


def test_each_round_begins_with_another_contestant() -> None:
    order: list[str] = []

    def worker(name: str) -> object:
        return lambda number: order.append(f"{name}{number}") or number

    told: list[str] = []
    results = by_turns({name: worker(name) for name in "abc"}, 3, told.append)  # type: ignore[misc]
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert results == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}
    assert told == list("abcbcacab")


def test_only_epochs_with_rows_count_as_epochs() -> None:
    progress = [
        {"numInputRows": 5, "durationMs": {"triggerExecution": 12, "addBatch": 7}},
        {"numInputRows": 0, "durationMs": {"triggerExecution": 3}},
    ]
    query = SimpleNamespace(recentProgress=progress)
    assert durations(query) == [12.0]  # type: ignore[arg-type]
    assert durations(query, "addBatch") == [7.0]  # type: ignore[arg-type]


def test_source_files_are_in_order_by_their_times(tmp_path: Path) -> None:
    add_files(tmp_path / "source", 0, 3, ROWS)
    add_files(tmp_path / "source", 3, 2, ROWS)
    files = sorted((tmp_path / "source").iterdir(), key=lambda path: path.stat().st_mtime)
    firsts = [pq.read_table(path).column("id")[0].as_py() for path in files]
    assert firsts == [0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS]
    assert len({int(path.stat().st_mtime) for path in files}) == 5


def test_manifests_get_the_age_of_the_simulated_day(tmp_path: Path) -> None:
    folder = tmp_path / "_versions"
    folder.mkdir()
    ageing = Ageing(str(tmp_path), interval=10)
    for number in range(4):
        (folder / f"{900 - number}.manifest").touch()
    ageing.age(4)
    for number in range(4, 8):
        (folder / f"{900 - number}.manifest").touch()
    ageing.age(8)
    times = [(folder / f"{900 - number}.manifest").stat().st_mtime for number in range(8)]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [10] * 7


# ------------------------------------------------------------------------------------------ racers


class Slow(Table):
    """Takes epochs and no time; the racer's clock is what it is."""

    taken = 0

    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        assert rows.column("id")[0].as_py() == epoch_id * ROWS
        self.taken += 1

    def count_rows(self) -> int:
        return self.taken * ROWS

    def facts(self) -> Facts:
        return Facts(self.taken, 10 * self.taken, 100 * self.taken)


def test_a_racer_sums_up_its_windows() -> None:
    racer = Racer(Slow(), ROWS, window=2)
    for _ in range(5):
        racer.epoch()
    assert [each.epochs for each in racer.windows()] == ["1-2", "3-4"]
    assert [each.facts.fragments for each in racer.windows()] == [2, 4]
    sheet = Sheet("E9", "A test", {})
    note_windows(sheet, racer, contestant="slow")
    assert len(sheet.figures) == 10
    assert sheet.figures[-1].labels == {"contestant": "slow", "epochs": "3-4"}
    assert racer.end() == 5


def test_a_racer_whose_time_is_over_stops() -> None:
    racer = Racer(Slow(), ROWS, window=2, budget=1e-9)
    for _ in range(5):
        racer.epoch()
    assert len(racer.milliseconds) == 1


def test_a_racer_refuses_a_table_that_lost_rows() -> None:
    racer = Racer(Slow(), ROWS, window=2)
    racer.epoch()
    racer.table.taken = 0  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="0 rows, expected 40"):
        racer.end()


# ------------------------------------------------------------------------------- plots and machine


def test_a_plot_is_written_as_png_and_as_the_same_svg_each_time(tmp_path: Path) -> None:
    charts = (
        Lines({"lance-stream": [(1, 2), (2, 3)], "late": []}, "commit", "epochs", "ms", log_y=True),
        Bars({"lance-stream": 3.0, "noop": 2.0}, "epoch", "ms"),
        Bars({"1 s": {"lance-stream": 3.0, "noop": 2.0}, "5 s": {"noop": 2.0}}, "rate", "rows/s"),
        Lines({"lance-stream": [(1, 2)]}, "fragments", "epochs", ""),
    )
    assert draw(tmp_path / "one", "plot", *charts, title="All") == "plot"
    draw(tmp_path / "two", "plot", *charts, title="All")
    first, second = ((tmp_path / each / "plot.svg").read_bytes() for each in ("one", "two"))
    assert first == second
    assert b"lance-stream" in first
    assert (tmp_path / "one" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_says_what_it_was_made_on(tmp_path: Path) -> None:
    told = machine.machine(tmp_path)
    assert told["cores"] >= 1  # type: ignore[operator]
    assert told["memory_gib"] > 0  # type: ignore[operator]
    assert told["file_system"]
    assert {"python", "java", "pylance", "deltalake", "pyiceberg"} <= set(machine.versions())


def test_each_scale_picks_its_own() -> None:
    assert [each.pick(quick=1, full=2) for each in Scale] == [1, 2]


@pytest.mark.parametrize(("name", "module"), command.EXPERIMENTS)
def test_each_experiment_has_what_the_command_asks_for(name: str, module: str) -> None:
    experiment = import_module(f"benchmarks.{module}")
    assert name == experiment.NAME
    assert experiment.TITLE
    assert callable(experiment.run)


def test_experiments_are_chosen_by_name_in_their_own_order() -> None:
    assert command.chosen("upkeep,E1") == [("E1", "growth"), ("E2", "upkeep")]
    assert [name for name, _ in command.chosen("E5")] == ["E5", "E5", "E5"]
    with pytest.raises(argparse.ArgumentTypeError, match="E9"):
        command.chosen("E1,E9")


def test_each_study_with_published_claims_runs_small_beside_the_experiments() -> None:
    published = {path.stem for path in KEPT.glob("*.json") if "results-" not in path.name}
    assert published <= set(command.STUDIES)
    assert command.chosen("week,E1") == [("E1", "growth"), ("study", "week")]


def test_the_reader_sees_the_rows_of_each_append_once_and_none_of_a_compaction(
    tmp_path: Path,
) -> None:
    uri = str(tmp_path / "t.lance")
    times = [datetime.fromtimestamp(1_700_000_000 + second, UTC) for second in range(4)]
    with Reader(OURS, uri) as reader:
        lance.write_dataset(pa.table({COLUMN: times}).slice(0, 0), uri)
        for each in times:
            lance.write_dataset(pa.table({COLUMN: [each]}), uri, mode="append")
        lance.dataset(uri).optimize.compact_files()
        assert len(lance.dataset(uri).get_fragments()) == 1
    assert len(reader.ages(0, 2e9)) == 4
    assert len(reader.ages(times[1].timestamp(), times[3].timestamp())) == 2


# ------------------------------------------------------------------------------------- contestants


@pytest.mark.parametrize("name", TABLES)
def test_a_contestant_takes_epochs_once_and_tells_its_size(name: str, tmp_path: Path) -> None:
    table = TABLES[name](str(tmp_path), SCHEMA)
    for number in range(5):
        table.epoch(rows(number * ROWS, ROWS))
    facts = table.facts()
    assert (table.count_rows(), facts.fragments) == (5 * ROWS, 5)
    assert 0 < facts.manifest_bytes < facts.stored_bytes
    table.epoch(rows(4 * ROWS, ROWS), epoch_id=4)
    promised = name in (OURS, *RIVALS)
    assert promised == (name != FLOOR)
    expected = (5 if promised else 6) * ROWS
    assert table.count_rows() == expected
    table.close()
    # Started again, a contestant finds what it had done.
    again = TABLES[name](str(tmp_path), SCHEMA)
    again.epoch(rows(4 * ROWS, ROWS), epoch_id=4)
    again.epoch(rows(5 * ROWS, ROWS))
    assert again.count_rows() == expected + (ROWS if promised else 2 * ROWS)


def test_two_queries_share_a_table(tmp_path: Path) -> None:
    for name in (OURS, *RIVALS):
        place = tmp_path / name
        place.mkdir()
        for query_id in ("first", "second"):
            table = TABLES[name](str(place), SCHEMA, query_id=query_id)
            table.epoch(rows(0, ROWS))
            table.close()
        assert table.count_rows() == 2 * ROWS, name


def test_the_classic_design_finds_an_epoch_whose_watermark_is_missing(tmp_path: Path) -> None:
    dataset = Classic(str(tmp_path), SCHEMA).dataset
    append = lance.LanceOperation.Append(write_fragments(rows(0, ROWS), dataset))
    first = lance.Transaction(dataset.version, append, transaction_properties=stamp(QUERY, 0))
    lance.LanceDataset.commit(dataset, first)
    table = Classic(str(tmp_path), SCHEMA)
    table.epoch(rows(0, ROWS))
    assert table.count_rows() == ROWS
    assert table.dataset.config()[watermark_key(QUERY)] == "0"


# ------------------------------------------------------------------------------------ publishing


ABOUT = {"date": "2026-01-02T03:04:05", "commit": "abc", "machine": {"cores": 2}, "versions": {}}


def published(tmp_path: Path, *values: float) -> str:
    """Publish one run for each value and return the page."""
    folders = []
    for number, value in enumerate(values):
        sheet = Sheet("E1", "A title", {"epochs": 3})
        sheet.ratio("commit_p50", of="ours", to="theirs", value=value, epochs="1-3")
        sheet.claim("is ahead", value=value, limit=1.0)
        folder = tmp_path / str(number)
        sheet.plots = [draw(folder, "restart", Lines({"a": [(1, 1)]}, "t", "x", "y"))]
        write([sheet], folder, ABOUT | {"scale": "full"})
        folders.append(folder)
    publish(folders, tmp_path / "page.md", tmp_path / "figures")
    return (tmp_path / "page.md").read_text()


def test_the_page_has_claims_and_plots_and_what_is_raw_lies_beside_it(tmp_path: Path) -> None:
    page = published(tmp_path, 0.5)
    bound = "≤\N{NO-BREAK SPACE}1"
    assert f"| is ahead | {bound} | 0.5 | yes | `benchmarks --full --only E1` |" in page
    assert "](figures/restart.svg)" in page
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["ratios.csv", "restart.svg", "results-1.json"]
    ratios = (tmp_path / "figures" / "ratios.csv").read_text().splitlines()
    assert ratios[1:] == ["run 1,E1,commit_p50,ours,theirs,epochs=1-3,0.5"]


@pytest.mark.parametrize(
    ("atleast", "worst", "held"), [(False, "1.5 (b", "**missed**"), (True, "0.5 (a", "yes")]
)
def test_the_page_shows_the_worst_case_of_a_claim(
    tmp_path: Path, atleast: bool, worst: str, held: str
) -> None:
    sheet = Sheet("E1", "A title", {})
    limit = 0.5 if atleast else 1.0
    sheet.claim("is ahead, a", value=0.5, limit=limit, atleast=atleast)
    sheet.claim("is ahead, b", value=1.5, limit=limit, atleast=atleast)
    write([sheet], tmp_path / "run", ABOUT | {"scale": "quick"})
    publish([tmp_path / "run"], tmp_path / "page.md", tmp_path / "figures")
    page = (tmp_path / "page.md").read_text()
    bound = "≥\N{NO-BREAK SPACE}0.5" if atleast else "≤\N{NO-BREAK SPACE}1"
    row = f"| is ahead | {bound} | {worst}; worst of 2) | {held} | `benchmarks --only E1` |"
    assert row in page
    assert page.count("is ahead") == 1


def test_a_later_run_of_an_experiment_counts_and_the_earlier_one_goes(tmp_path: Path) -> None:
    page = published(tmp_path, 0.5, 1.5)
    assert "| 1.5 | **missed** |" in page
    assert "| yes |" not in page
    assert not (tmp_path / "figures" / "results-1.json").exists()


def test_a_laboratory_is_published_by_its_claims(tmp_path: Path) -> None:
    """What it says of its own claims does not count; its figures do."""
    claim = {"claim": "fragments", "value": 1.3, "limit": 1.2, "holds": True}
    (tmp_path / "week.json").write_text(json.dumps({"name": "week", "claims": [claim]} | ABOUT))
    publish([tmp_path / "week.json"], tmp_path / "page.md", tmp_path / "figures")
    page = (tmp_path / "page.md").read_text()
    row = "| fragments | ≤\N{NO-BREAK SPACE}1.2 | 1.3 | **missed** | `benchmarks.week` |"
    assert row in page
    assert "[week.json](figures/week.json)" in page


def test_a_laboratory_without_claims_is_refused(tmp_path: Path) -> None:
    (tmp_path / "week.json").write_text(json.dumps({"name": "week"} | ABOUT))
    with pytest.raises(SystemExit, match="no claims"):
        publish([tmp_path / "week.json"], tmp_path / "page.md", tmp_path / "figures")


def test_the_published_page_is_what_its_raw_files_make_and_is_short(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "figures")
    publish([], tmp_path / "page.md", tmp_path / "figures")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    for path in KEPT.iterdir():
        assert path.read_bytes() == (tmp_path / "figures" / path.name).read_bytes()
    assert len(PAGE.read_text().splitlines()) <= 130
