"""Debezium's change events, unpacked: texts as its connectors for Postgres and MySQL write them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import Row, SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.spark.debezium import unpack_debezium
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.envelope import EnvelopeOptions
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason

ROW = "id BIGINT, name STRING"
POSTGRES = {
    "version": "3.2.0.Final",
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1_735_689_600_123,
    "ts_us": 1_735_689_600_123_456,
    "ts_ns": 1_735_689_600_123_456_000,
    "snapshot": "false",
    "db": "shop",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24023128,
    "xmin": None,
}
MYSQL = {
    "version": "2.4.0.Final",
    "connector": "mysql",
    "name": "shop",
    "ts_ms": 1_735_689_600_000,
    "snapshot": "false",
    "db": "inventory",
    "sequence": None,
    "table": "customers",
    "server_id": 223344,
    "gtid": None,
    "file": "mysql-bin.000003",
    "pos": 484,
    "row": 0,
    "thread": 7,
    "query": None,
}


def event(
    op: str = "c", *, before: Any = None, after: Any = None, source: Any = None, **more: Any
) -> dict[str, Any]:
    found = {"before": before, "after": after, "source": source or POSTGRES, "op": op}
    return found | {"ts_ms": 1_735_689_600_500, "transaction": None} | more


def wrapped(payload: Any) -> dict[str, Any]:
    return {
        "schema": {
            "type": "struct",
            "optional": False,
            "name": "shop.public.customers.Envelope",
            "fields": [{"type": "string", "optional": False, "field": "op"}],
        },
        "payload": payload,
    }


def unpacked(spark: SparkSession, *values: Any, schema: str = ROW, **options: Any) -> list[Row]:
    """Unpack records; each is a value, or a key and a value."""
    records = []
    for number, each in enumerate(values):
        key, value = each if isinstance(each, tuple) else (None, each)
        texts = [x if isinstance(x, bytes | None) else _bytes(x) for x in (key, value)]
        records.append((*texts, "shop.customers", 2, 100 + number))
    df = spark.createDataFrame(
        records, "key BINARY, value BINARY, topic STRING, partition INT, offset LONG"
    )
    return unpack_debezium(df, schema, EnvelopeOptions.parse(options)).collect()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def one(spark: SparkSession, value: Any, **options: Any) -> Row:
    (row,) = unpacked(spark, value, **options)
    return row


def test_a_row_is_unpacked_with_and_without_its_schema(spark: SparkSession) -> None:
    change = event("u", before={"id": 1, "name": "a"}, after={"id": 1, "name": "b"})
    for value in (change, wrapped(change)):
        assert one(spark, value).asDict(recursive=True) == {
            "id": 1,
            "name": "b",
            "_op": "u",
            "_ts": datetime.fromtimestamp(1_735_689_600.123456, UTC)
            .astimezone()
            .replace(tzinfo=None),
            "_sequence": {"log": 24023119, "position": 24023128, "row": 0},
            "__lance_refused": None,
            "__lance_raw": None,
        }


def test_value_columns_of_text_need_no_kafka(spark: SparkSession) -> None:
    text = json.dumps(event(after={"id": 1, "name": None}))
    df = spark.createDataFrame([(text,)], "value STRING")
    (row,) = unpack_debezium(df, ROW).collect()
    assert (row.id, row.name, row["__lance_refused"]) == (1, None, None)


def test_each_operation_has_its_row(spark: SparkSession) -> None:
    key = {"id": 5}
    rows = unpacked(
        spark,
        event("c", after={"id": 1, "name": "c"}),
        event("r", after={"id": 2, "name": "r"}),
        event("d", before={"id": 3, "name": "d"}),
        (wrapped(key), event("d")),
        (key, event("d")),
        (key, None),
        event("t"),
    )
    found = [(each["_op"], each["id"], each["name"], each["__lance_refused"]) for each in rows]
    assert found == [
        ("c", 1, "c", None),
        ("r", 2, "r", None),
        ("d", 3, "d", None),
        ("d", 5, None, None),
        ("d", 5, None, None),
        ("t", None, None, None),
    ], "a tombstone record is no row"


# --------------------------------------------------------------------------------------- order


def test_binlog_files_are_in_order_by_their_number(spark: SparkSession) -> None:
    places = [
        ("mysql-bin.999999", 900, 0),
        ("mysql-bin.1000000", 4, 0),
        ("mysql-bin.1000000", 4, 1),
    ]
    rows = unpacked(
        spark,
        *(
            event(after={"id": 1, "name": "x"}, source=MYSQL | {"file": f, "pos": p, "row": r})
            for f, p, r in places
        ),
    )
    found = [tuple(each["_sequence"]) for each in rows]
    assert found == sorted(found) == [(999999, 900, 0), (1000000, 4, 0), (1000000, 4, 1)]


def test_a_transaction_that_commits_later_is_newer_whatever_its_lsn(spark: SparkSession) -> None:
    first = POSTGRES | {"lsn": 500, "sequence": '["400","500"]'}
    late = POSTGRES | {"lsn": 450, "sequence": '["600","450"]'}
    snapshot = POSTGRES | {"lsn": 390, "sequence": '[null,"390"]', "snapshot": "true"}
    rows = unpacked(
        spark,
        event("r", after={"id": 1, "name": "s"}, source=snapshot),
        event(after={"id": 1, "name": "x"}, source=first),
        event(after={"id": 1, "name": "x"}, source=late),
    )
    found = [tuple(each["_sequence"]) for each in rows]
    assert found == sorted(found)


def test_kafka_orders_what_another_connector_sends(spark: SparkSession) -> None:
    other = {"connector": "sqlserver", "ts_ms": 1, "change_lsn": "00000027:00000758:0003"}
    row = one(spark, event(after={"id": 1, "name": "x"}, source=other))
    assert tuple(row["_sequence"]) == (0, 100, 0)
    broken = {name: each for name, each in MYSQL.items() if name != "pos"}
    row = one(spark, event(after={"id": 1, "name": "x"}, source=broken))
    assert row["__lance_refused"] == "source says no position: no lsn, and no file and pos"


# --------------------------------------------------------------------------------------- types


def base64_of(unscaled: int) -> str:
    size = (unscaled.bit_length() + 8) // 8
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


AT = datetime(2025, 1, 1, 0, 0, 0, 123456)
MICROS = 1_735_689_600_123_456

OPTIONS: list[dict[str, str]] = [
    {},
    {"decimals": "base64"},
    *({"timestamps": unit} for unit in ("us", "ms", "ns")),
]
TYPES: list[tuple[str, Any, Any, dict[str, str]]] = [
    ("BIGINT", 2**63 - 1, 2**63 - 1, {}),
    ("BIGINT", "-9223372036854775808", -(2**63), {}),
    ("TINYINT", -128, -128, {}),
    ("BOOLEAN", True, True, {}),
    ("BOOLEAN", 0, False, {}),
    ("DOUBLE", 0.1, 0.1, {}),
    ("DOUBLE", "-Infinity", float("-inf"), {}),
    ("FLOAT", 1.5, 1.5, {}),
    ("STRING", '{"a": 1}', '{"a": 1}', {}),
    ("BINARY", "3q2+7w==", b"\xde\xad\xbe\xef", {}),
    ("DECIMAL(10,2)", "-12345678.90", Decimal("-12345678.90"), {}),
    ("DECIMAL(10,2)", "1.100", Decimal("1.10"), {}),
    (
        "DECIMAL(38,10)",
        "1234567890123456789012345678.0123456789",
        Decimal("1234567890123456789012345678.0123456789"),
        {},
    ),
    ("DECIMAL(12,2)", 1.0e7, Decimal("10000000.00"), {}),
    *(
        ("DECIMAL(18,2)", base64_of(each), Decimal(each).scaleb(-2), {"decimals": "base64"})
        for each in (0, 1, -1, 127, 128, -128, -129, 123456789012345678, -(10**18) + 1)
    ),
    ("DATE", 20089, date(2025, 1, 1), {}),
    ("DATE", -1, date(1969, 12, 31), {}),
    ("DATE", "2025-01-01Z", date(2025, 1, 1), {}),
    ("TIMESTAMP_NTZ", MICROS, AT, {"timestamps": "us"}),
    ("TIMESTAMP_NTZ", MICROS // 1000, AT.replace(microsecond=123000), {"timestamps": "ms"}),
    ("TIMESTAMP_NTZ", MICROS * 1000, AT, {"timestamps": "ns"}),
    ("TIMESTAMP_NTZ", -1, datetime(1969, 12, 31, 23, 59, 59, 999999), {"timestamps": "us"}),
    ("TIMESTAMP_NTZ", "2025-01-01T00:00:00.123456", AT, {}),
]


@pytest.fixture(scope="module")
def types(spark: SparkSession) -> list[Row]:
    """Every value of :data:`TYPES`, those of the same options in one job."""
    found: dict[int, Row] = {}
    for options in OPTIONS:
        mine = [n for n, each in enumerate(TYPES) if each[3] == options]
        schema = ", ".join(f"c{n} {TYPES[n][0]}" for n in mine)
        row = one(
            spark, event(after={f"c{n}": TYPES[n][1] for n in mine}), schema=schema, **options
        )
        found |= dict.fromkeys(mine, row)
    return [found[n] for n in range(len(TYPES))]


@pytest.mark.parametrize("number", range(len(TYPES)), ids=lambda n: f"{TYPES[n][0]} {TYPES[n][1]}")
def test_a_value_is_read_as_the_type_of_its_column(types: list[Row], number: int) -> None:
    row, expected = types[number], TYPES[number][2]
    assert row["__lance_refused"] is None
    value = row[f"c{number}"]
    assert (bytes(value) if isinstance(value, bytearray) else value) == expected


def test_timestamps_with_a_zone_are_instants(spark: SparkSession) -> None:
    texts = {"a": "2025-01-01T02:00:00.123456+02:00", "b": "2025-01-01T00:00:00.123456Z"}
    row = one(spark, event(after=texts), schema="a TIMESTAMP, b TIMESTAMP")
    counted = one(spark, event(after={"a": MICROS}), schema="a TIMESTAMP", timestamps="us")
    assert row.a == row.b == counted.a
    assert row.a.astimezone(UTC).replace(tzinfo=None) == AT


WRONG: list[tuple[str, Any, str, dict[str, str]]] = [
    ("BIGINT", 2**63, "is not bigint: 9223372036854775808", {}),
    ("INT", 2**31, "is not int", {}),
    ("BIGINT", 1.5, "is not bigint: 1.5", {}),
    ("BIGINT", "five", "is not bigint: five", {}),
    ("BIGINT", {"a": 1}, "is not bigint", {}),
    ("BIGINT", True, "is not bigint", {}),
    ("BOOLEAN", "yes", "is not boolean", {}),
    ("FLOAT", 1e39, "is not float", {}),
    ("DOUBLE", "1d", "is not double", {}),
    ("BINARY", "!", "is not binary", {}),
    ("DECIMAL(5,2)", "1.234", "is not decimal(5,2)", {}),
    ("DECIMAL(5,2)", "1234.00", "is not decimal(5,2)", {}),
    ("DECIMAL(5,2)", "MDk=", "decimals says whether it is text or base64", {}),
    ("DATE", "2025-02-30", "is not date", {}),
    ("DATE", 1.5, "is not date", {}),
    ("DATE", 2**30, "is not date", {}),
    ("TIMESTAMP", MICROS, "is said by the envelope option timestamps", {}),
    ("TIMESTAMP", "2025-01-01T00:00:00", "is not timestamp", {}),
    ("TIMESTAMP_NTZ", 2**62, "is not timestamp_ntz", {"timestamps": "ms"}),
    ("TIMESTAMP_NTZ", 1, "is not timestamp_ntz", {"timestamps": "ns"}),
    ("DECIMAL(5,2)", "123.45", "is not decimal(5,2)", {"decimals": "base64"}),
    ("DECIMAL(5,2)", base64_of(10**7), "is not decimal(5,2)", {"decimals": "base64"}),
    ("DECIMAL(18,2)", base64_of(2**64), "is not decimal(18,2)", {"decimals": "base64"}),
    ("STRING", "__debezium_unavailable_value", "REPLICA IDENTITY FULL", {}),
    ("BIGINT NOT NULL", None, "is null, and is NOT NULL", {}),
]


def test_a_value_that_does_not_fit_is_refused_and_never_null(spark: SparkSession) -> None:
    for options in OPTIONS:
        mine = [(f"c{n}", *each) for n, each in enumerate(WRONG) if each[3] == options]
        if not mine:
            continue
        schema = ", ".join(f"{name} {kind}" for name, kind, *_ in mine)
        events = [event(after={name: value}) for name, _, value, *_ in mine]
        found = unpacked(spark, *events, schema=schema, missingColumns="null", **options)
        for row, (name, _, value, why, _) in zip(found, mine, strict=True):
            assert row["__lance_refused"].startswith(f"column {name!r} ")
            assert why in row["__lance_refused"]
            assert [each for each in row if each is not None] == list(row)[-2:]
            assert json.loads(json.loads(row["__lance_raw"])["value"])["after"] == {name: value}


def test_a_refused_record_is_kept_as_it_came(spark: SparkSession) -> None:
    change = event(after={"id": "one", "name": "x"})
    (row,) = unpacked(spark, ({"id": 1}, change))
    came = json.loads(row["__lance_raw"])
    assert (came["topic"], came["partition"], came["offset"]) == ("shop.customers", 2, 100)
    assert (json.loads(came["key"]), json.loads(came["value"])) == ({"id": 1}, change)


BROKEN: list[tuple[Any, str]] = [
    ("{", "the value is not JSON of a change event"),
    ("", "the value is not JSON of a change event"),
    ("[1]", "the value is not JSON of a change event"),
    (json.dumps(event(after={"id": 1, "name": "x"})) + " more", "the value is not JSON"),
    (b"\xff{}", "the value is not UTF-8"),
    (event("c", after="text"), "the value is not JSON of a change event"),
    ({"id": 1}, "the value has no op"),
    (event("m"), "op m is none of c, u, d, r, t"),
    (event("u"), "op u without after"),
    (event("d"), "op d without before, and the key is no JSON object"),
    ((b"5", event("d")), "op d without before, and the key is no JSON object"),
    (event(after={"id": 1}), "the row has no column 'name'"),
    (event(after={"id": 1, "name": "x"}, source={"lsn": 5}, ts_ms=None), "ts_ms is missing"),
]


def test_a_record_that_is_no_change_event_is_refused(spark: SparkSession) -> None:
    rows = unpacked(spark, *(value for value, _ in BROKEN))
    for row, (_, why) in zip(rows, BROKEN, strict=True):
        assert (row["__lance_refused"] or "").startswith(why)
        assert (row["id"], row["name"], row["__lance_raw"] is None) == (None, None, False)


def test_a_column_that_older_records_lack_is_null_when_allowed(spark: SparkSession) -> None:
    row = one(spark, event(after={"id": 1}), missingColumns="null")
    assert (row.id, row.name, row["__lance_refused"]) == (1, None, None)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("id INT, tags ARRAY<STRING>", "column 'tags' is array<string>.*from_json"),
        ("id VARCHAR(5)", "declare STRING"),
        ("_op STRING", "leave them out of schema"),
        ("a DECIMAL(20,2)", "decimal.handling.mode=string"),
    ],
)
def test_a_schema_that_is_not_read_is_refused(spark: SparkSession, schema: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        unpacked(spark, event(), schema=schema, decimals="base64")


def test_a_source_without_values_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SpecError, match="needs a column 'value' of text or bytes"):
        unpack_debezium(spark.range(1), ROW)


# ----------------------------------------------------------------------------------------- job


def a_job(folder: Path, sql: str | None, **sink: str) -> JobSpec:
    return JobSpec.parse(
        {
            "launchId": "launch",
            "source": {
                "format": "text",
                "options": {"path": str(folder / "topic")},
                "schema": ROW,
                "envelope": "debezium",
            },
            "sql": sql,
            "sink": {
                "uri": str(folder / "customers.lance"),
                "queryId": "customers",
                "checkpointLocation": str(folder / "checkpoint"),
                "createIfMissing": True,
                **sink,
            },
        }
    )


def test_sql_of_a_job_sees_the_unpacked_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "topic").mkdir()
    events = [event(after={"id": n, "name": "x"}) for n in range(3)]
    lines = "\n".join(map(json.dumps, [*events, event("d", before={"id": 7, "name": "y"})]))
    (tmp_path / "topic" / "one.json").write_text(lines)
    chosen = "SELECT id, _op AS op, _sequence.position AS lsn FROM source WHERE "
    summary = run(spark, a_job(tmp_path, chosen + "__lance_refused IS NULL"))
    assert summary.reason is EndReason.FINISHED, summary.message
    rows = lance.dataset(str(tmp_path / "customers.lance")).to_table().to_pylist()
    expected = [(0, "c"), (1, "c"), (2, "c"), (7, "d")]
    assert sorted((row["id"], row["op"]) for row in rows) == expected
    assert {row["lsn"] for row in rows} == {24023128}


def test_sql_that_leaves_out_what_was_refused_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "topic").mkdir()
    summary = run(spark, a_job(tmp_path, "SELECT id, name FROM source"))
    assert summary.error == "SpecError"
    assert "select __lance_refused and __lance_raw too" in str(summary.message)
    assert not (tmp_path / "customers.lance").exists()


def test_a_record_that_cannot_be_unpacked_goes_to_the_quarantine_as_it_came(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "topic").mkdir()
    wrong = json.dumps(event(after={"id": "one", "name": "x"}))
    lines = [json.dumps(event(after={"id": 1, "name": "x"})), wrong]
    (tmp_path / "topic" / "one.json").write_text("\n".join(lines))
    summary = run(spark, a_job(tmp_path, None, onRefusedRow="quarantine"))
    assert summary.reason is EndReason.FINISHED, summary.message
    table = lance.dataset(str(tmp_path / "customers.lance")).to_table()
    assert table.column_names == ["id", "name", "_op", "_ts", "_sequence"]
    assert table["id"].to_pylist() == [1]
    (kept,) = lance.dataset(str(tmp_path / "customers.quarantine.lance")).to_table().to_pylist()
    assert "column 'id' is not bigint: one" in kept["detail"]
    assert json.loads(json.loads(kept["row"])["__lance_raw"])["value"] == wrong
