"""Expectations: how they are written, counted in Arrow, and stamped."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import ProtocolVersionError, RowsRefusedError, SpecError
from airflow_provider_lance.protocol.codec import decode_stamp, encode_stamp
from airflow_provider_lance.protocol.model import Epoch, OutputMode
from airflow_provider_lance.protocol.port import Append, Upsert, change_for
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.spark.sieve import Sieve
from airflow_provider_lance.spec.expectations import Action, Expectation
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.golden.written import OWNER, QUERY

POSITIVE = {"name": "positive", "condition": "amount > 0", "action": "drop"}
NAMES = st.text("abcdefghij_", min_size=1, max_size=8)
COUNTS = st.integers(0, 2**40)
CHECKS = st.builds(
    RowChecks, st.dictionaries(NAMES, st.builds(Met, COUNTS, COUNTS)), COUNTS, COUNTS
)


def options(**more: object) -> SinkOptions:
    places = {"uri": "/data/t.lance", "checkpointLocation": "/data/cp", "queryId": "q"}
    return SinkOptions.parse({**places, **more})


def test_expectations_are_read_from_a_list_and_from_its_json_text() -> None:
    found = options(expectations=[POSITIVE]).expectations
    assert found == (Expectation("positive", "amount > 0", Action.DROP),)
    assert options(expectations=json.dumps([POSITIVE])).expectations == found
    again = SinkOptions.loads(options(expectations=[POSITIVE]).dumps())
    assert again.expectations == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no JSON", "JSON"),
        ({"name": "a"}, "a list of"),
        ([{"name": "a", "condition": "x > 0"}], "exactly"),
        ([POSITIVE | {"also": 1}], "exactly"),
        ([POSITIVE | {"action": "delete"}], "'warn', 'drop', 'quarantine', 'fail'"),
        ([POSITIVE | {"name": "two words"}], "64 letters"),
        ([POSITIVE | {"condition": " "}], "conditions are SQL"),
        ([POSITIVE | {"condition": "a = '\ud800'"}], "surrogates"),
        ([POSITIVE, POSITIVE | {"action": "warn"}], "occurs once"),
        ([POSITIVE | {"name": f"n{n}"} for n in range(101)], "at most 100"),
    ],
)
def test_an_expectation_of_another_form_is_refused_by_name(given: object, said: str) -> None:
    with pytest.raises(SpecError, match="expectations must be") as raised:
        options(expectations=given)
    assert said in str(raised.value)


@given(CHECKS)
def test_counts_survive_the_stamp_and_the_summary(checks: RowChecks) -> None:
    epoch = Epoch(3, OutputMode.APPEND, [], 5, 0, "2026-01-02T03:04:05.000+00:00", checks=checks)
    stamp = decode_stamp(encode_stamp(QUERY, OWNER, epoch, 1, "run"), QUERY, 7)
    assert stamp is not None
    assert stamp.checks == checks
    assert RowChecks.read_json(json.loads(json.dumps(checks.to_json()))) == checks


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expectations", "[]"),
        ("expectations", '{"a":[1]}'),
        ("expectations", '{"a":[1,-1]}'),
        ("expectations", '{"a":[1,true]}'),
        ("expectations", '{"a":[1,2.0]}'),
        ("dropped", "-1"),
        ("quarantined", "1_0"),
    ],
)
def test_counts_that_no_version_writes_are_refused(name: str, value: str) -> None:
    epoch = Epoch(3, OutputMode.APPEND, [], 5, 0, "2026-01-02T03:04:05.000+00:00")
    stamp = encode_stamp(QUERY, OWNER, epoch, 1, "run") | {f"streaming.{name}": value}
    with pytest.raises(ProtocolVersionError, match="counts of expectations"):
        decode_stamp(stamp, QUERY, 7)


@given(st.lists(CHECKS, max_size=4))
def test_counts_add_up_in_any_order(parts: list[RowChecks]) -> None:
    total, backwards = RowChecks(), RowChecks()
    for part in parts:
        total += part
    for part in reversed(parts):
        backwards = part + backwards
    assert total == backwards
    assert total.dropped == sum(part.dropped for part in parts)


def test_an_upsert_of_which_no_row_landed_appends_nothing() -> None:
    epoch = Epoch(3, OutputMode.UPDATE, [], 0, 0, "2026-01-02T03:04:05.000+00:00")
    assert change_for(epoch) == Append([])
    assert isinstance(change_for(replace(epoch, keys=pa.table({"id": [1]}))), Upsert)


# ---------------------------------------------------------------------------------------- sieve

ACTIONS = st.sampled_from([Action.WARN, Action.DROP])
VALUES = st.sampled_from([True, False, None])


@given(st.data())
def test_every_row_lands_or_is_dropped_and_null_is_not_met(data: st.DataObject) -> None:
    actions = data.draw(st.lists(ACTIONS, max_size=4))
    rows = data.draw(st.lists(st.tuples(*[VALUES] * len(actions)), max_size=12))
    sieve = Sieve(tuple(Expectation(f"e{n}", "…", each) for n, each in enumerate(actions)))
    table = pa.table({"id": pa.array(range(len(rows)), pa.int64())})
    for n, (name, _) in enumerate(sieve.columns):
        table = table.append_column(name, pa.array([row[n] for row in rows], pa.bool_()))
    sifted = sieve.sift(table)
    kept, checks = sifted.rows, sifted.checks
    expected = [
        number
        for number, row in enumerate(rows)
        if all(v or a is not Action.DROP for v, a in zip(row, actions, strict=True))
    ]
    assert kept.column("id").to_pylist() == expected
    assert checks.dropped == len(rows) - len(expected)
    for n in range(len(actions)):
        met = sum(row[n] is True for row in rows)
        assert checks.expectations[f"e{n}"] == Met(met, len(rows) - met)


def test_the_action_fail_names_expectation_condition_and_a_row() -> None:
    sieve = Sieve((Expectation("positive", "amount > 0", Action.FAIL),))
    table = pa.table({"id": [1, 2], "__lance_expect_0": [True, None]})
    with pytest.raises(RowsRefusedError, match=r"'positive' \(amount > 0\).*1 rows.*{\"id\":2}"):
        sieve.sift(table)
