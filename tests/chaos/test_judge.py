"""The judge of the laboratory: what it counts itself, and what it does not believe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.input import Source, expected, rows_of
from tests.chaos.judge import Evidence, Verdict, compare, judge
from tests.chaos.life import Manner, manner_of
from tests.chaos.plan import Mode

FILES = [
    [{"id": 1, "seq": 0, "grp": "a", "amount": 5, "op": "u"}],
    [
        {"id": 1, "seq": 1, "grp": "b", "amount": 7, "op": "u"},
        {"id": 2, "seq": 1, "grp": "a", "amount": 1, "op": "u"},
    ],
    [{"id": 2, "seq": 2, "grp": "a", "amount": 9, "op": "d"}],
]
ALL = [tuple(row.values()) for file in FILES for row in file]


def test_what_must_be_there_is_counted_from_the_input() -> None:
    assert expected(Mode.APPEND, FILES) == Counter(ALL)
    assert expected(Mode.UPSERT, FILES[:2]) == Counter(ALL[1:3])
    assert expected(Mode.UPSERT, FILES) == Counter(ALL[1:2]), "a delete takes the row away"
    assert expected(Mode.COMPLETE, FILES) == Counter([("a", 3, 15), ("b", 1, 7)])
    assert all(expected(mode, []) == Counter() for mode in Mode)


def test_an_upserts_file_has_each_key_once_and_an_appends_rows_never_come_again() -> None:
    files = [rows_of(Mode.UPSERT, "s", number) for number in range(30)]
    for file in files:
        assert len({row["id"] for row in file}) == len(file)
    assert len({row["id"] for file in files for row in file}) < sum(map(len, files)) / 2
    appended = [row["id"] for number in range(30) for row in rows_of(Mode.APPEND, "s", number)]
    assert len(set(appended)) == len(appended)
    assert rows_of(Mode.APPEND, "s", 3) == rows_of(Mode.APPEND, "s", 3)


def test_lost_and_duplicated_rows_are_counted_each() -> None:
    wanted = Counter("aab")
    assert compare(Counter("aab"), wanted) == (0, 0)
    assert compare(Counter("ab"), wanted) == (1, 0)
    assert compare(Counter("aabbb"), wanted) == (0, 2)
    assert compare(Counter("aax"), wanted) == (1, 1), "an old row in place of the newest"


def test_files_of_epochs_that_were_accepted_as_lost_are_not_expected(tmp_path: Path) -> None:
    source = Source(tmp_path / "source", Mode.APPEND, "s")
    source.add(4)
    rows = [len(file) for file in source.files]
    assert source.expected(4, range(1, 3)).total() == rows[0] + rows[3]
    assert source.expected(2, range(1, 3)).total() == rows[0]
    assert source.expected(4).total() == sum(rows)


def seen(rows: str, **given: int) -> Evidence:
    known: dict[str, Any] = {"watermark": 1, "missing": 0, "planned": 1, "committed": 1} | given
    return Evidence(Counter(rows), **known)


def input_until(epoch: int) -> Counter[str]:
    return Counter("abcd"[: epoch + 1])


def test_a_claim_is_believed_only_if_the_rows_are_there() -> None:
    assert judge(seen("ab"), input_until).fine
    assert judge(seen("a"), input_until).lost == 1
    assert judge(seen("abb"), input_until).duplicated == 1
    assert judge(seen("", watermark=-1, planned=-1, committed=-1), input_until).fine


def test_an_epoch_that_spark_has_as_done_must_be_there_whatever_is_claimed() -> None:
    outcome = judge(seen("ab", planned=2, committed=2), input_until)
    assert (outcome.epoch, outcome.lost) == (2, 1)


def test_an_epoch_that_is_there_and_not_claimed_will_be_doubled() -> None:
    assert judge(seen("abc", planned=2), input_until).duplicated == 1


def test_nothing_may_be_claimed_that_was_never_planned() -> None:
    assert "claimed" in judge(seen("abc", watermark=2), input_until).wrong


def test_where_evidence_is_gone_the_epoch_in_doubt_is_there_whole_or_not_at_all() -> None:
    def doubtful(rows: str) -> Evidence:
        return seen(rows, watermark=0, missing=3, planned=2, committed=1)

    assert judge(doubtful("ab"), input_until).epoch == 1
    assert judge(doubtful("abc"), input_until).epoch == 2
    assert judge(doubtful("abc"), input_until).fine
    assert judge(doubtful("a"), input_until).lost == 1
    assert judge(doubtful("abcc"), input_until).duplicated == 1


def test_a_version_that_cannot_be_read_is_wrong_whatever_else_is_right() -> None:
    evidence = Evidence(Counter(), 1, 0, 1, 1, unreadable="a file is not there")
    outcome = judge(evidence, input_until)
    assert (outcome.unreadable, outcome.lost) == (1, 0)
    assert not outcome.fine
    assert "a file is not there" in outcome.wrong


@pytest.mark.parametrize("healthy", [False, True])
def test_a_check_may_say_healthy_only_where_no_row_is_missing(healthy: bool) -> None:
    assert not judge(seen("ab"), input_until).deceives(healthy)
    assert judge(seen("a"), input_until).deceives(healthy) is healthy
    assert Verdict(1, 0, 0, unreadable=1).deceives(healthy) is healthy


@pytest.mark.parametrize(
    ("error", "message", "manner"),
    [
        ("", "", Manner.FINISHED),
        ("", "epoch 3 did not end", Manner.HUNG),
        ("FencedError", "taken", Manner.FENCED),
        ("HistoryGapError", "gone", Manner.REFUSED),
        ("CommitStateUnknownError", "reset", Manner.GAVE_UP),
        ("OSError", "reset", Manner.UNNAMED),
    ],
)
def test_an_end_is_told_by_its_error(error: str, message: str, manner: Manner) -> None:
    assert manner_of(error, message) is manner
