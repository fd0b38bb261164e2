"""Mended rows are written back once, whatever happened to the command that wrote them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.diagnostics.quarantine import open_rows, read_quarantine
from airflow_provider_lance.exceptions import HistoryGapError, PreconditionError, SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.quarantine import quarantine_schema
from airflow_provider_lance.repair import feed as feeding
from airflow_provider_lance.repair.feed import FeedResult, FeedStep, feed_rows
from airflow_provider_lance.repair.feed_plan import Mended
from airflow_provider_lance.spark.aside import Aside, Origin, Refused

TABLE = pa.schema([("id", pa.int64()), ("amount", pa.int32())])
STREAM = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("op", pa.string())])


class Killed(BaseException):
    pass


class Place:
    """A table with the rows 1 and 2, and a quarantine with the rows 11 to 14."""

    def __init__(self, folder: Path, merge_keys: tuple[str, ...] = (), **more: Any) -> None:
        self.uri, self.aside = str(folder / "t.lance"), str(folder / "t.quarantine.lance")
        rows = pa.table({"id": [1, 2], "amount": [10, 20]}, schema=TABLE)
        lance.write_dataset(rows, self.uri, **more)
        lance.write_dataset(quarantine_schema().empty_table(), self.aside)
        self.merge_keys = merge_keys
        self.add([11, 12, 13, 14], epoch=7)

    def add(self, ids: list[int], *, epoch: int, deletes: bool = False) -> None:
        mode = "update" if self.merge_keys else "append"
        origin = Origin(
            self.aside, "q", epoch, '["{}"]', "2026-11-22T10:00:00.000+00:00", mode, self.merge_keys
        )
        values = {"id": ids, "amount": [2**40] * len(ids), "op": ["u"] * len(ids)}
        refused = [Refused("column 'amount' does not fit int32", "too large")] * len(ids)
        aside = Aside(pa.table(values, schema=STREAM), refused, [deletes] * len(ids))
        lance.write_dataset(aside.of(origin), self.aside, mode="append")

    @property
    def table(self) -> LanceDatasetPort:
        return open_dataset(self.uri)

    @property
    def quarantine(self) -> LanceDatasetPort:
        return open_dataset(self.aside)

    def mended(self, *ids: int, **changes: Any) -> list[Mended]:
        rows = list(open_rows(self.quarantine, "q"))
        return [
            Mended(each["id"], each["row"] | {"amount": each["row"]["id"] * 10} | changes)
            for each in rows
            if not ids or each["row"]["id"] in ids
        ]

    def feed(self, mended: list[Mended], **more: Any) -> FeedResult:
        return feed_rows(self.table, self.quarantine, "q", mended, **more)

    def amounts(self) -> Counter[tuple[int, int]]:
        rows = lance.dataset(self.uri).to_table().to_pylist()
        return Counter((row["id"], row["amount"]) for row in rows)

    def states(self) -> Counter[str]:
        table = read_quarantine(self.quarantine, "q", last=1000)
        return Counter(row.state for row in table.newest)


BEFORE = Counter([(1, 10), (2, 20)])
AFTER = BEFORE + Counter([(11, 110), (12, 120), (13, 130), (14, 140)])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_mended_rows_land_once_and_are_marked(place: Place) -> None:
    mended = place.mended()
    planned = place.feed(mended, dry_run=True)
    assert (planned.fed, planned.feed, place.amounts()) == (4, None, BEFORE)
    done = place.feed(mended)
    assert (done.fed, done.already, place.amounts()) == (4, 0, AFTER)
    assert place.states() == Counter(fed=4)
    again = place.feed(mended)
    assert (again.fed, again.already, again.feed, place.amounts()) == (0, 4, None, AFTER)
    assert list(open_rows(place.quarantine, "q")) == []
    assert place.table.properties(done.version) == {
        "streaming.feed": done.feed,
        "streaming.feedOf": "q",
        "streaming.feedRows": "4",
    }


@pytest.mark.parametrize("step", list(FeedStep))
def test_a_feed_that_was_killed_is_finished_by_the_next(place: Place, step: FeedStep) -> None:
    mended = place.mended(11, 12, 13)

    def kill(at: FeedStep) -> None:
        if at is step:
            raise Killed

    with pytest.raises(Killed):
        place.feed(mended, on_step=kill)
    assert place.states() == Counter({"in doubt": 3, "open": 1})
    landed = step is FeedStep.LANDED
    planned = place.feed(place.mended(), dry_run=True)
    assert (planned.fed, planned.finished) == ((1, 3) if landed else (4, 0))
    done = place.feed(mended + place.mended(14))
    assert (done.fed, done.finished) == ((1, 3) if landed else (4, 0))
    assert (place.amounts(), place.states()) == (AFTER, Counter(fed=4))


def test_a_feed_that_another_one_has_ended_writes_nothing(place: Place) -> None:
    mended = place.mended()

    def other(at: FeedStep) -> None:
        if at is FeedStep.MARKED:
            assert place.feed(mended).fed == 4

    with pytest.raises(PreconditionError, match="another run of this command ended feed"):
        place.feed(mended, on_step=other)
    assert (place.amounts(), place.states()) == (AFTER, Counter(fed=4))


def test_rows_that_another_feed_takes_meanwhile_are_left_to_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, mark = place.mended(), feeding._mark
    monkeypatch.setattr(feeding, "_mark", lambda *given: (place.feed(mended), mark(*given)))

    def once(*given: Any) -> None:
        monkeypatch.setattr(feeding, "_mark", mark)
        place.feed(mended[:1])
        mark(*given)

    monkeypatch.setattr(feeding, "_mark", once)
    with pytest.raises(PreconditionError, match="another feed has taken 1 of 4 rows"):
        place.feed(mended)
    assert place.feed(mended).fed == 3
    assert place.amounts() == AFTER


def test_a_feed_whose_answer_was_lost_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_lance.exceptions import CommitStateUnknownError
    from airflow_provider_lance.protocol.port import Append

    commit = LanceDatasetPort.commit

    def lost(self: LanceDatasetPort, change: Any, properties: Any = None) -> Any:
        landed = commit(self, change, properties)
        if isinstance(change, Append):
            raise CommitStateUnknownError("timed out")
        return landed

    monkeypatch.setattr(LanceDatasetPort, "commit", lost)
    assert place.feed(place.mended()).fed == 4
    assert place.amounts() == AFTER


def test_a_gap_in_history_after_a_killed_feed_is_not_guessed_over(place: Place) -> None:
    def kill(at: FeedStep) -> None:
        raise Killed

    mended = place.mended()
    with pytest.raises(Killed):
        place.feed(mended, on_step=kill)
    for number in range(3):
        lance.write_dataset(
            pa.table({"id": [number], "amount": [1]}, TABLE), place.uri, mode="append"
        )
    from datetime import timedelta

    lance.dataset(place.uri).cleanup_old_versions(timedelta(0))
    with pytest.raises(HistoryGapError, match="Look for its rows in the table"):
        place.feed(mended)


@pytest.mark.parametrize("stable", [False, True])
def test_an_upserts_rows_replace_others_only_when_told(tmp_path: Path, stable: bool) -> None:
    place = Place(tmp_path, ("id",), enable_stable_row_ids=stable)
    place.add([2], epoch=8)
    mended = place.mended(2, 11)
    with pytest.raises(PreconditionError, match="1 rows of .* may be newer"):
        place.feed(mended)
    assert place.amounts() == BEFORE
    done = place.feed(mended, replace=True)
    assert (done.fed, done.replaced) == (2, 1)
    assert place.amounts() == Counter([(1, 10), (2, 20), (11, 110)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"amount": 2**40}, "do not fit.*column 'amount'"),
        ({"colour": "red"}, r"columns \['colour'\]"),
        ({"id": None}, "merge keys .*are null"),
        ({"id": 5}, "have the same merge keys"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    place = Place(tmp_path, ("id",))
    with pytest.raises(SpecError, match=said):
        place.feed(place.mended(**changes))
    assert (place.amounts(), place.states()) == (BEFORE, Counter(open=4))


def test_a_file_names_each_row_once_and_only_rows_that_are_there(place: Place) -> None:
    mended = place.mended(11)
    with pytest.raises(SpecError, match="rows twice"):
        place.feed(mended * 2)
    with pytest.raises(SpecError, match="not in .* for query 'q', for example \"it's\""):
        place.feed([Mended("it's", {})])
    with pytest.raises(SpecError, match="not in .* for query 'other'"):
        feed_rows(place.table, place.quarantine, "other", mended)
    with pytest.raises(SpecError, match="one feed takes 10,000 rows"):
        place.feed([Mended(str(number), {}) for number in range(10_001)])


def test_rows_that_delete_and_rows_under_other_keys_are_not_fed(tmp_path: Path) -> None:
    place = Place(tmp_path, ("id",))
    place.add([15], epoch=8, deletes=True)
    with pytest.raises(PreconditionError, match="delete by their keys"):
        place.feed(place.mended())
    place.merge_keys = ()
    place.add([16], epoch=9)
    with pytest.raises(PreconditionError, match="under different merge keys"):
        place.feed(place.mended(11, 16))


def test_the_newest_rows_and_the_counts_by_reason_are_read(place: Place) -> None:
    place.add([15, 16], epoch=9)
    place.feed(place.mended(11))
    table = read_quarantine(place.quarantine, "q", last=3)
    (count,) = table.reasons
    assert (count.rows, count.open, count.first_epoch, count.last_epoch) == (6, 5, 7, 9)
    assert [row.epoch for row in table.newest] == [9, 9, 7]
    assert json.loads(table.newest[0].row)["amount"] == 2**40
    assert read_quarantine(place.quarantine, "q", last=3, reason="it's").newest == ()
