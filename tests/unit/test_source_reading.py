"""The Lance source's values: offsets, options, the limits of an epoch, and the tasks of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SOURCE_VERSION, SourceOffset
from airflow_provider_lance.source.admission import Budget
from airflow_provider_lance.source.changes import Effect, VersionChange
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.parts import Part
from airflow_provider_lance.source.slices import ChangeType, Slice, divide

OFFSET = SourceOffset(7, 1_795_000_000_000_000, index=12, snapshot=True)


# ---------------------------------------------------------------------------------------- offsets

indexes = st.none() | st.integers(0, 2**63 - 1)
offsets = st.builds(
    SourceOffset,
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    indexes,
    st.booleans(),
    st.booleans(),
)


@given(offsets | st.just(NOT_BEGUN))
def test_an_offset_comes_back_from_json(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    assert SourceOffset.from_json(json.loads(text)) == offset
    assert json.dumps(SourceOffset.from_json(json.loads(text)).to_json()) == text


def test_an_offset_of_a_newer_form_is_refused() -> None:
    written = OFFSET.to_json() | {"sourceVersion": SOURCE_VERSION + 1}
    with pytest.raises(ProtocolVersionError, match=r"has form 2, and this release reads form 1"):
        SourceOffset.from_json(written)


def test_fields_of_a_later_release_are_passed_over_and_missing_ones_have_defaults() -> None:
    assert SourceOffset.from_json(OFFSET.to_json() | {"later": {"x": 1}}) == OFFSET
    assert SourceOffset.from_json({"version": 3, "timestamp": 4}) == SourceOffset(3, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": "7"},
        {"version": None},
        {"timestamp": 1.5},
        {"index": -1},
        {"index": True},
        {"snapshot": "true"},
    ],
)
def test_an_offset_that_was_edited_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="the offset of a Lance source must be "):
        SourceOffset.from_json(OFFSET.to_json() | change)


def test_an_offset_says_which_version_reading_on_needs() -> None:
    feed = SourceOffset(7, 0, index=3, change_feed=True)
    assert feed.oldest_needed == 6
    assert replace(feed, index=None).oldest_needed == 7
    assert replace(feed, snapshot=True).oldest_needed == 7
    assert replace(feed, version=1).oldest_needed == 1
    assert replace(feed, change_feed=False).oldest_needed == 6


# ---------------------------------------------------------------------------------------- options


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"path": "/data/t.lance", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "t.lance"}, ["path", "'t.lance'", "absolute"]),
        ({"startingVersion": "0"}, ["startingVersion", "'0'", "'latest'"]),
        ({"startingVersion": "newest"}, ["startingVersion", "'newest'", "'latest'"]),
        ({"startingTimestamp": "yesterday"}, ["startingTimestamp", "'yesterday'", "2026-"]),
        ({"maxRowsPerTrigger": "0"}, ["maxRowsPerTrigger", "'0'"]),
        ({"maxRowsPerTrigger": "1e6"}, ["maxRowsPerTrigger", "'1e6'"]),
        ({"maxBytesPerTrigger": "1g"}, ["maxBytesPerTrigger", "'1g'"]),
        ({"maxVersionsPerTrigger": "-1"}, ["maxVersionsPerTrigger", "'-1'"]),
        ({"readChangeFeed": "yes"}, ["readChangeFeed", "'yes'", "true or false"]),
        ({"ignoreDeletes": "1"}, ["ignoreDeletes", "'1'", "true or false"]),
        ({"columns": "a,b,a"}, ["columns", "'a,b,a'", "each column once"]),
        ({"consumerId": "a b"}, ["consumerId", "'a b'"]),
        ({"startVersion": "1"}, ["startVersion", "startingVersion"]),
        (
            {"startingVersion": "3", "startingTimestamp": "2026-01-01"},
            ["startingVersion", "startingTimestamp", "got 3 and 2026-01-01"],
        ),
        (
            {"readChangeFeed": "true", "skipChangeCommits": "true"},
            ["readChangeFeed=true", "skipChangeCommits=true", "one of them"],
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_value(given: dict[str, str], said: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        options(**given)
    for each in ("options of the lance source", *said):
        assert each in str(caught.value)


def test_a_path_is_required_and_names_are_known_in_any_case() -> None:
    with pytest.raises(SpecError, match="path is missing"):
        SourceOptions.parse({})
    spelled = SourceOptions.spelled({"PATH": "/t", "maxrowspertrigger": "5"})
    assert (spelled.path, spelled.max_rows) == ("/t", 5)


# ------------------------------------------------------------------------------------- admission


def part(units: int, unit_size: int = 10, rows_per_unit: int = 1) -> Part:
    return Part(units, unit_size, lambda low, high: [], rows_per_unit)


def version(number: int, *parts: Part) -> VersionChange:
    return VersionChange(number, 0, Effect.APPEND, parts=parts)


def epochs(chosen: SourceOptions, changes: Sequence[VersionChange]) -> list[list[int]]:
    """Return the units that each epoch takes of the versions, until all are read."""
    found: list[list[int]] = []
    number = first = 0
    while number < len(changes):
        budget, taken = Budget(chosen), []
        while number < len(changes):
            last = budget.take(changes[number], first)
            if last == first < changes[number].units:
                break
            taken.append(last - first)
            whole = last == changes[number].units
            number, first = (number + 1, 0) if whole else (number, last)
            if not whole or budget.is_spent():
                break
        found.append(taken)
    return found


def test_a_snapshot_of_a_million_rows_is_read_in_epochs_of_a_thousand() -> None:
    snapshot = version(1, *(part(50_001) for _ in range(20)))
    found = epochs(options(maxRowsPerTrigger="1000"), [snapshot])
    assert sum(map(sum, found)) == 1_000_020
    assert max(map(sum, found)) == 1_000


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({"maxRowsPerTrigger": "7"}, 7),
        ({"maxBytesPerTrigger": "70"}, 7),
        ({"maxBytesPerTrigger": "1"}, 1),
        ({"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "90"}, 5),
    ],
)
def test_limits_divide_versions_of_any_size(given: dict[str, str], most: int) -> None:
    changes = [version(n, *(part(size) for size in (3, 0, 11))) for n in range(1, 6)]
    found = epochs(options(**given), changes)
    assert sum(map(sum, found)) == 5 * 14
    assert max(map(sum, found)) == most


def test_both_images_of_a_row_count_and_stay_in_one_epoch() -> None:
    updates = version(2, part(5, rows_per_unit=2))
    assert epochs(options(maxRowsPerTrigger="4"), [updates]) == [[2], [2], [1]]
    assert epochs(options(maxRowsPerTrigger="1"), [updates]) == [[1]] * 5


def test_versions_without_rows_cost_nothing() -> None:
    changes = [version(n, *([part(1)] if n % 10 == 0 else [])) for n in range(1, 51)]
    found = epochs(options(maxVersionsPerTrigger="2"), changes)
    assert [sum(each) for each in found] == [2, 2, 1]
    assert sum(map(len, found)) == 50


def test_without_limits_an_epoch_takes_all_of_a_version() -> None:
    budget = Budget(options(maxRowsPerTrigger="1", maxVersionsPerTrigger="1"), unlimited=True)
    for number in range(3):
        assert budget.take(version(number, part(10**9)), 0) == 10**9
        assert not budget.is_spent()


# ----------------------------------------------------------------------------------------- tasks


def a_slice(fragment: int, rows: int, row_size: int, positions: bytes = b"") -> Slice:
    size = rows * row_size
    return Slice(3, fragment, "f", 5, 5 + rows, size, ChangeType.INSERT, 3, 0, positions)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9), st.booleans()), max_size=6),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_tasks_have_all_rows_in_order_and_not_too_many(
    sizes: list[tuple[int, int, bool]], most_bytes: int, most_rows: int
) -> None:
    slices = []
    for number, (rows, row_size, picked) in enumerate(sizes):
        chosen = b"".join((3 * n).to_bytes(8, "little") for n in range(rows)) if picked else b""
        slices.append(a_slice(number, rows, row_size, chosen))
    tasks = divide(slices, most_bytes, most_rows)
    assert all(sum(each.rows for each in task) <= most_rows for task in tasks)
    assert all(
        sum(each.size for each in task) <= most_bytes or sum(each.rows for each in task) == 1
        for task in tasks
    )

    def rows_of(parts: Sequence[Slice]) -> list[tuple[int, object]]:
        found: list[tuple[int, object]] = []
        for each in parts:
            held = each.positions
            rows: Sequence[object] = (
                [held[at : at + 8] for at in range(0, len(held), 8)]
                if held
                else range(each.start, each.stop)
            )
            found += [(each.fragment, row) for row in rows]
        return found

    assert rows_of([each for task in tasks for each in task]) == rows_of(slices)
