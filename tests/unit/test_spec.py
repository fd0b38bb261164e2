from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.spec.expectations import Action, Expectation
from airflow_provider_lance.spec.job import AVAILABLE_NOW, JobSpec, Source
from airflow_provider_lance.spec.sink_options import SinkOptions

SECRET = "v3ry-s3cret"
SINK = {"uri": "s3://lake/t.lance", "queryId": "orders", "checkpointLocation": "s3://lake/cp"}
POSITIVE = {"name": "positive", "condition": "amount > 0", "action": "drop"}
DROPPED = Expectation("positive", "amount > 0", Action.DROP)
UPSERT = {"outputMode": "update", "mergeKeys": "id"}
JOB = {"launchId": "launch", "sink": SINK, "source": {"format": "rate"}}


def sink(**options: Any) -> SinkOptions:
    return SinkOptions.parse(SINK | options)


def job(**parts: Any) -> JobSpec:
    return JobSpec.parse(JOB | parts)


# ------------------------------------------------------------------------------- sink options


def test_the_defaults_of_the_sink() -> None:
    assert sink() == SinkOptions(
        uri="s3://lake/t.lance",
        query_id="orders",
        checkpoint_location="s3://lake/cp",
        output_mode=OutputMode.APPEND,
        merge_keys=(),
        delete_when=None,
        update_as_append=False,
        small_epoch_rows=20_000,
        target_rows_per_fragment=1_048_576,
        watermark_every=10,
        auto_compact_every=None,
        keep_versions_for=None,
        refresh_indices=True,
        cache_bytes=256 * 1024 * 1024,
        create_if_missing=False,
        change_feed=False,
        vector_sizes={},
        new_generation=False,
        on_history_gap=OnHistoryGap(),
        storage_options={},
    )


ORDERED = UPSERT | {"sequenceBy": "lsn, part"}
HISTORY = ORDERED | {"scdType": 2}

GOOD: list[tuple[dict[str, Any], str, Any]] = [
    ({"uri": "/data/t.lance/"}, "uri", "/data/t.lance"),
    ({"checkpointLocation": "file:/cp/"}, "checkpoint_location", "file:/cp"),
    ({"outputMode": "Complete"}, "output_mode", OutputMode.COMPLETE),
    (UPSERT | {"mergeKeys": "a, b,"}, "merge_keys", ("a", "b")),
    (UPSERT | {"mergeKeys": ["a", " b "]}, "merge_keys", ("a", "b")),
    (UPSERT | {"deleteWhen": "op = 'D'"}, "delete_when", "op = 'D'"),
    (ORDERED, "sequence_by", ("lsn", "part")),
    (ORDERED | {"tombstoneRetention": "60"}, "tombstone_retention", 60),
    (ORDERED | {"truncateWhen": "op = 't'"}, "truncate_when", "op = 't'"),
    (ORDERED | {"ignoreNullUpdates": "true"}, "ignore_null_updates", True),
    ({"exceptColumns": "op, lsn"}, "except_columns", ("op", "lsn")),
    (ORDERED | {"scdType": "2"}, "scd_type", 2),
    (ORDERED | {"scdType": 1}, "scd_type", 1),
    (ORDERED | {"scdType": 2, "exceptColumns": "lsn"}, "except_columns", ("lsn",)),
    (HISTORY | {"trackHistoryColumns": "a, b"}, "track_history_columns", ("a", "b")),
    ({"outputMode": "update", "updateAsAppend": "TRUE"}, "update_as_append", True),
    ({"smallEpochRows": 0}, "small_epoch_rows", 0),
    ({"smallEpochRows": "0"}, "small_epoch_rows", 0),
    ({"smallEpochRows": "12"}, "small_epoch_rows", 12),
    ({"targetRowsPerFragment": "7"}, "target_rows_per_fragment", 7),
    ({"watermarkEvery": 1}, "watermark_every", 1),
    ({"autoCompactEvery": "50"}, "auto_compact_every", 50),
    ({"autoCompactEvery": 0}, "auto_compact_every", 0),
    ({"keepVersionsFor": "172800"}, "keep_versions_for", 172_800),
    ({"refreshIndices": "false"}, "refresh_indices", False),
    ({"cacheBytes": "1048576"}, "cache_bytes", 1048576),
    ({"createIfMissing": True}, "create_if_missing", True),
    ({"createIfMissing": "false"}, "create_if_missing", False),
    ({"changeFeed": True}, "change_feed", True),
    ({"vectorSizes": "v:3, w:768"}, "vector_sizes", {"v": 3, "w": 768}),
    ({"vectorSizes": {"a:b": "4"}}, "vector_sizes", {"a:b": 4}),
    ({"invalidText": "replace"}, "replace_invalid_text", True),
    ({"invalidText": "refuse"}, "replace_invalid_text", False),
    ({"schemaEvolution": "addColumns"}, "add_columns", True),
    ({"schemaEvolution": "none"}, "add_columns", False),
    ({"missingColumns": "null"}, "fill_missing", True),
    ({"missingColumns": "refuse"}, "fill_missing", False),
    ({"expectations": [POSITIVE]}, "expectations", (DROPPED,)),
    ({"expectations": json.dumps([POSITIVE])}, "expectations", (DROPPED,)),
    ({"onRefusedRow": "quarantine"}, "keep_refused", True),
    ({"onRefusedRow": "fail"}, "keep_refused", False),
    (
        {"onRefusedRow": "quarantine", "quarantineUri": "s3://lake/bad.lance/"},
        "quarantine_uri",
        "s3://lake/bad.lance",
    ),
    ({"onCheckpointChange": "newGeneration"}, "new_generation", True),
    ({"onCheckpointChange": "fail"}, "new_generation", False),
    ({"onRestore": "fail"}, "on_restore", OnRestore()),
    ({"onRestore": "accept:3-5"}, "on_restore", OnRestore(3, 5)),
    ({"onHistoryGap": "fail"}, "on_history_gap", OnHistoryGap()),
    ({"onHistoryGap": "committed:7@3"}, "on_history_gap", OnHistoryGap(7, True, 3)),
    ({"onHistoryGap": "missing:7@3"}, "on_history_gap", OnHistoryGap(7, False, 3)),
    (
        {"storageOptions": {"allow_http": True, "timeout": 5}},
        "storage_options",
        {"allow_http": "true", "timeout": "5"},
    ),
]


@pytest.mark.parametrize(("given", "name", "value"), GOOD)
def test_a_good_form_is_read(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(sink(**given), name) == value


BAD: list[tuple[dict[str, Any], str]] = [
    ({"uri": "data/t.lance"}, "uri must be an absolute path or a URI"),
    ({"uri": 7}, "uri must be a text"),
    ({"uri": " "}, "uri must be a text"),
    ({"uri": None}, "uri is missing"),
    ({"checkpointLocation": "cp"}, "checkpointLocation must be an absolute path"),
    ({"checkpointLocation": None}, "checkpointLocation is missing"),
    ({"queryId": None}, "queryId is missing"),
    ({"queryId": "a b"}, "queryId 'a b' cannot be part of a config key"),
    ({"outputMode": "upsert"}, "outputMode must be one of 'append', 'complete', 'update', got"),
    (UPSERT | {"mergeKeys": 7}, "mergeKeys must be a list of column names"),
    (UPSERT | {"mergeKeys": ["a", 7]}, "mergeKeys must be a list of column names"),
    (UPSERT | {"mergeKeys": "a,a"}, "mergeKeys must be a list that names each column once"),
    (UPSERT | {"deleteWhen": ""}, "deleteWhen must be a text"),
    ({"sequenceBy": "lsn"}, "sequenceBy needs mergeKeys"),
    (ORDERED | {"sequenceBy": "id"}, "sequenceBy names ['id'], which mergeKeys names too"),
    (ORDERED | {"exceptColumns": "lsn"}, "exceptColumns names ['lsn']"),
    (ORDERED | {"tombstoneRetention": 0}, "tombstoneRetention must be a whole number of 1 or more"),
    (UPSERT | {"tombstoneRetention": 60}, "tombstoneRetention needs sequenceBy"),
    (UPSERT | {"truncateWhen": "op = 't'"}, "truncateWhen needs sequenceBy"),
    (UPSERT | {"ignoreNullUpdates": True}, "ignoreNullUpdates needs sequenceBy"),
    (UPSERT | {"scdType": 2}, "scdType needs sequenceBy"),
    (ORDERED | {"scdType": 3}, "scdType must be 1 (one row for each key) or 2"),
    (ORDERED | {"scdType": True}, "scdType must be 1 (one row for each key) or 2"),
    (ORDERED | {"trackHistoryColumns": "a"}, "trackHistoryColumns needs scdType=2"),
    (HISTORY | {"ignoreNullUpdates": True}, "ignoreNullUpdates does not go with scdType=2"),
    (HISTORY | {"onRefusedRow": "quarantine"}, "onRefusedRow=quarantine does not go with scdType"),
    (HISTORY | {"exceptColumns": "id"}, "exceptColumns names ['id']"),
    (
        HISTORY | {"trackHistoryColumns": "a", "schemaEvolution": "addColumns"},
        "schemaEvolution=addColumns does not go with trackHistoryColumns",
    ),
    ({"updateAsAppend": "yes"}, "updateAsAppend must be true or false, got 'yes'"),
    ({"updateAsAppend": 1}, "updateAsAppend must be true or false, got 1"),
    ({"smallEpochRows": -1}, "smallEpochRows must be a whole number"),
    ({"smallEpochRows": False}, "smallEpochRows must be a whole number"),
    ({"targetRowsPerFragment": 0}, "targetRowsPerFragment must be a whole number of 1 or more"),
    ({"targetRowsPerFragment": 1.5}, "targetRowsPerFragment must be a whole number"),
    ({"watermarkEvery": "0"}, "watermarkEvery must be a whole number of 1 or more, got '0'"),
    ({"watermarkEvery": True}, "watermarkEvery must be a whole number"),
    ({"autoCompactEvery": -1}, "autoCompactEvery must be a whole number"),
    ({"keepVersionsFor": 600}, "keepVersionsFor is 600 s: give an hour or more"),
    ({"keepVersionsFor": 172800, "autoCompactEvery": 0}, "leave one of them out"),
    ({"refreshIndices": "maybe"}, "refreshIndices must be"),
    ({"cacheBytes": 0}, "cacheBytes must be a whole number"),
    ({"cacheBytes": 2**64}, "cacheBytes must be a whole number"),
    ({"createIfMissing": "maybe"}, "createIfMissing must be true or false"),
    ({"changeFeed": 1}, "changeFeed must be true or false, got 1"),
    ({"vectorSizes": "v"}, "vectorSizes must be a mapping of column to vector size"),
    ({"vectorSizes": {"v": 0}}, "vectorSizes must be a whole number"),
    ({"vectorSizes": 7}, "vectorSizes must be a mapping of column to vector size"),
    ({"invalidText": "drop"}, "invalidText must be 'refuse' or 'replace'"),
    ({"schemaEvolution": "widen"}, "schemaEvolution must be 'none' or 'addColumns'"),
    ({"missingColumns": True}, "missingColumns must be 'refuse' or 'null'"),
    ({"expectations": [POSITIVE, POSITIVE]}, "expectations must be a list in which each name"),
    ({"onRefusedRow": "drop"}, "onRefusedRow must be 'fail' or 'quarantine'"),
    ({"quarantineUri": "bad.lance"}, "quarantineUri must be an absolute path or a URI"),
    ({"onCheckpointChange": "ignore"}, "onCheckpointChange must be 'fail' or 'newGeneration'"),
    ({"onRestore": "accept:5-3"}, "onRestore='accept:5-3': use 'fail' or 'accept:<first>-<last>'"),
    ({"onHistoryGap": "skip"}, "onHistoryGap='skip': use 'fail', 'committed:<epoch>@<version>'"),
    ({"onHistoryGap": "committed:"}, "onHistoryGap='committed:'"),
    ({"onHistoryGap": "missing:-1@2"}, "onHistoryGap='missing:-1@2'"),
    ({"storageOptions": "key=value"}, "storageOptions must be a mapping of texts"),
    ({"storageOptions": {"key": None}}, "storageOptions must be a mapping of texts"),
    ({"storageOptions": {"key": ["a"]}}, "storageOptions must be a mapping of texts"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_a_bad_form_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        sink(**given)
    assert message in str(caught.value)


def test_every_option_of_the_sink_has_a_good_and_a_bad_form_above() -> None:
    unset = {"autoCompactEvery", "deleteWhen", "keepVersionsFor", "quarantineUri", "truncateWhen"}
    names = {*sink().to_json(), *unset}
    assert names == {name for row in GOOD for name in row[0]} | {"queryId"}
    assert names == {name for row in BAD for name in row[0]}


def test_unknown_names_are_listed_beside_the_valid_ones() -> None:
    with pytest.raises(SpecError) as caught:
        sink(mergeKey="id", Uri="/x")
    text = str(caught.value)
    assert "unknown ['Uri', 'mergeKey']" in text
    assert all(repr(name) in text for name in sink().to_json())


APPENDED = {"outputMode": "update", "updateAsAppend": True}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"outputMode": "update"}, ["mergeKeys", "updateAsAppend=true"]),
        ({"mergeKeys": "id"}, ["mergeKeys", "outputMode=update", "outputMode=append"]),
        (UPSERT | APPENDED, ["mergeKeys", "outputMode=update", "updateAsAppend=true"]),
        ({"updateAsAppend": True}, ["updateAsAppend", "outputMode=update", "=append"]),
        ({"deleteWhen": "op = 'D'"}, ["deleteWhen needs mergeKeys"]),
        (APPENDED | {"deleteWhen": "op = 'D'"}, ["deleteWhen needs mergeKeys"]),
    ],
)
def test_options_that_contradict_are_refused_with_both(
    given: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        sink(**given)
    assert [words for words in said if words not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, OutputMode.APPEND),
        ({"outputMode": "complete"}, OutputMode.COMPLETE),
        (UPSERT, OutputMode.UPDATE),
        (APPENDED, OutputMode.APPEND),
    ],
)
def test_how_an_epoch_is_committed(given: dict[str, Any], mode: OutputMode) -> None:
    assert sink(**given).commit_mode is mode


# ----------------------------------------------------------------------------- source and job


def test_a_source_is_a_format_with_options_and_a_schema() -> None:
    given = {"format": "kafka", "options": {"startingOffsets": "earliest"}, "schema": "a INT"}
    assert Source.parse(given) == Source(
        format="kafka", options={"startingOffsets": "earliest"}, schema="a INT"
    )
    assert Source.parse({"format": "rate"}) == Source(format="rate", options={}, schema=None)


def test_a_source_with_an_envelope_keeps_it_on_its_way_to_the_driver() -> None:
    given = {
        "format": "kafka",
        "options": {"subscribe": "customers"},
        "schema": "id BIGINT",
        "envelope": "debezium",
        "envelopeOptions": {"timestamps": "us", "decimals": "base64"},
    }
    source = Source.parse(given)
    assert source.reader_schema is None
    assert Source.parse(json.loads(json.dumps(source.to_json()))) == source
    plain = Source.parse({"format": "parquet", "schema": "id BIGINT"})
    assert (plain.envelope, plain.reader_schema) == (None, "id BIGINT")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"envelope": "canal", "schema": "id INT"}, "envelope must be 'debezium'"),
        ({"envelope": "debezium"}, "envelope=debezium needs schema"),
        ({"envelopeOptions": {"timestamps": "us"}}, "envelopeOptions go with envelope"),
        (
            {"envelope": "debezium", "schema": "id INT", "envelopeOptions": {"timestamps": "s"}},
            "timestamps must be 'ms', 'us' or 'ns'",
        ),
        (
            {
                "format": "lance",
                "options": {"path": "/t.lance"},
                "envelope": "debezium",
                "schema": "id INT",
            },
            "rows in no envelope",
        ),
    ],
)
def test_an_envelope_that_makes_no_sense_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Source.parse({"format": "kafka", "options": {"subscribe": "customers"}} | more)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "format is missing"),
        ({"format": ""}, "source: format must be .*got ''"),
        ({"format": "rate", "option": {}}, r"source: unknown \['option'\]; valid names are"),
        ({"format": "rate", "options": ["a"]}, "source: options must be"),
        ({"format": "rate", "schema": ["a"]}, "source: schema must be"),
        ("rate", "source: .*got str"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job(source=given)


def test_the_defaults_of_a_job() -> None:
    spec = job()
    assert (spec.trigger, spec.sql, spec.dataframe, spec.arguments) == (
        AVAILABLE_NOW,
        None,
        None,
        {},
    )
    assert (spec.launched_by, spec.stop_grace) == ("", 60)


def test_launch_has_launched_by_and_stop_grace() -> None:
    spec = job(launchedBy="flights/stream/manual__1/-1#2", stopGrace="90")
    assert (spec.launched_by, spec.stop_grace) == ("flights/stream/manual__1/-1#2", 90)


@pytest.mark.parametrize("trigger", ["availableNow", "10 seconds", "1 minute", "500 milliseconds"])
def test_good_triggers_are_accepted(trigger: str) -> None:
    assert job(trigger=trigger).trigger == trigger


def test_a_users_function_takes_arguments_and_no_sql() -> None:
    spec = job(source=None, dataframe="my.streams:orders", arguments={"path": "/x", "limit": 3})
    assert spec.dataframe == "my.streams:orders"
    assert spec.arguments == {"path": "/x", "limit": "3"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"launchId": None}, "launchId is missing"),
        ({"launchId": ""}, "launchId must be .*got ''"),
        ({"launchId": "../up"}, "launchId must be .*got '../up'"),
        ({"sink": None}, "sink is missing"),
        ({"sink": "s3://x"}, "sink options: .*got str"),
        ({"source": None}, "either source .* or dataframe .*, not neither"),
        ({"dataframe": "m:f"}, "not both"),
        ({"source": None, "dataframe": "m:f", "sql": "SELECT 1"}, "sql goes with"),
        ({"sql": " "}, "sql must be .*got ' '"),
        ({"dataframe": "module.function"}, "dataframe must be 'module:function'"),
        ({"arguments": "a=b"}, "arguments must be"),
        ({"trigger": "continuous"}, "trigger must be .*got 'continuous'"),
        ({"trigger": "1 fortnight"}, "trigger must be .*got '1 fortnight'"),
        ({"trigger": {"once": True}}, "trigger must be .*got {'once'"),
        ({"launchedBy": ["a"]}, "launchedBy must be"),
        ({"stopGrace": 0}, "stopGrace must be .* 1 .*got 0"),
        ({"stopGrace": 1.5}, "stopGrace must be .*got 1.5"),
        ({"triger": "x", "Sql": "y"}, r"unknown \['Sql', 'triger'\]; valid names are .*'trigger'"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job(**parts)


@pytest.mark.parametrize("text", ["", "{", "not json"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not JSON"):
        JobSpec.loads(text)


@pytest.mark.parametrize("text", ["[]", "7", "null"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="got (list|int|NoneType)"):
        JobSpec.loads(text)


# --------------------------------------------------------------------------------- round trip

words = st.text(string.ascii_letters + string.digits + "_-. ä", min_size=1, max_size=12).map(
    lambda text: f"x{text.strip()}"
)
texts = st.text(min_size=1, max_size=20).filter(str.strip)
mappings = st.dictionaries(words, st.text(max_size=12), max_size=3)
locations = words.map("s3://bucket/{}".format)
expectations = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
        "condition": texts,
        "action": st.sampled_from(["warn", "drop", "fail"]),
    }
)
gaps = st.just("fail") | st.builds(
    "{}:{}@{}".format,
    st.sampled_from(["committed", "missing"]),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
modes = st.one_of(
    st.sampled_from([{}, {"outputMode": "complete"}]),
    st.just({"outputMode": "update", "updateAsAppend": True}),
    st.fixed_dictionaries(
        {
            "outputMode": st.just("update"),
            "mergeKeys": st.lists(words, min_size=1, max_size=3, unique=True),
        },
        optional={"deleteWhen": texts},
    ),
)
sinks = st.builds(
    lambda required, optional, mode: required | optional | mode,
    st.fixed_dictionaries(
        {
            "uri": locations,
            "queryId": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            "checkpointLocation": words.map("s3://checkpoints/{}".format),
        }
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "smallEpochRows": st.integers(0, 10**7),
            "targetRowsPerFragment": st.integers(1, 10**7),
            "watermarkEvery": st.integers(1, 1000),
            "createIfMissing": st.booleans(),
            "changeFeed": st.booleans(),
            "vectorSizes": st.dictionaries(words, st.integers(1, 4096), max_size=2),
            "invalidText": st.sampled_from(["refuse", "replace"]),
            "schemaEvolution": st.sampled_from(["none", "addColumns"]),
            "missingColumns": st.sampled_from(["refuse", "null"]),
            "onCheckpointChange": st.sampled_from(["fail", "newGeneration"]),
            "expectations": st.lists(expectations, max_size=3, unique_by=lambda each: each["name"]),
            "onHistoryGap": gaps,
            "storageOptions": mappings,
        },
    ),
    modes,
)
rows_from = st.one_of(
    st.fixed_dictionaries(
        {
            "source": st.fixed_dictionaries(
                {"format": texts}, optional={"options": mappings, "schema": texts}
            )
        },
        optional={"sql": texts},
    ),
    st.fixed_dictionaries({"dataframe": st.just("my.module:rows")}),
)
jobs = st.builds(
    lambda required, rows: required | rows,
    st.fixed_dictionaries(
        {
            "launchId": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
            "sink": sinks,
            "trigger": st.sampled_from([AVAILABLE_NOW, "10 seconds"]),
            "arguments": mappings,
        },
        optional={"launchedBy": texts, "stopGrace": st.integers(1, 10**6)},
    ),
    rows_from,
)


@given(jobs)
def test_a_specification_comes_back_as_it_went(given: dict[str, Any]) -> None:
    spec = JobSpec.parse(given)
    assert JobSpec.loads(spec.dumps()) == spec
    assert SinkOptions.parse(spec.sink.to_json()) == spec.sink


# ------------------------------------------------------------------------------------ secrets


def secretive() -> dict[str, Any]:
    return {
        "launchId": "launch",
        "sink": SINK | {"storageOptions": {"aws_secret_access_key": SECRET}},
        "source": {"format": "kafka", "options": {"kafka.sasl.jaas.config": SECRET}},
        "arguments": {"password": SECRET},
        "sourceStorageOptions": {"session_token": SECRET},
    }


def test_secrets_are_in_no_representation_and_in_the_file() -> None:
    spec = JobSpec.parse(secretive())
    assert SECRET not in f"{spec!r} {spec} {spec.sink!r} {spec.source!r}"
    assert spec.dumps().count(SECRET) == 4


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("sink", SINK | {"storageOptions": f"aws_secret_access_key={SECRET}"}),
        ("sink", SINK | {"storageOptions": {"key": [SECRET]}}),
        ("source", {"format": "kafka", "options": {"password": [SECRET]}}),
        ("source", {"format": "kafka", "options": SECRET}),
        ("arguments", SECRET),
        ("sourceStorageOptions", {"session_token": [SECRET]}),
        ("arguments", {"password": {"nested": SECRET}}),
        ("sink", SINK | {"storageOptions": {"k": SECRET}, "unknown": SECRET}),
    ],
)
def test_secrets_are_in_no_error_message(part: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.parse(secretive() | {part: value})
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_in_no_message_of_broken_json() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.loads(json.dumps(secretive())[:-1])
    assert SECRET not in str(caught.value)
