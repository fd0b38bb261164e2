"""Options of Spark's sources that Spark ignores silently: refused, or warned of."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
from pyspark.sql.streaming import DataStreamReader

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.spec.job import Source
from airflow_provider_lance.spec.source_options import doubtful_options, known_options


def operator(source: dict[str, Any], **changes: Any) -> LanceStreamOperator:
    arguments = {
        "task_id": "stream",
        "uri": "/data/orders.lance",
        "checkpoint_location": "/data/checkpoints/orders",
        "source": source,
        "lance_conn_id": None,
    }
    return LanceStreamOperator(**(arguments | changes))


@pytest.mark.parametrize(
    ("source", "misspelt", "meant"),
    [
        ("kafka", "startingOffset", "startingOffsets"),
        ("kafka", "maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("Kafka", "failOnDataloss_", "failOnDataLoss"),
        ("kafka", "maxFilesPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka", "subscribes", "subscribe"),
        ("json", "maxFilePerTrigger", "maxFilesPerTrigger"),
        ("csv", "headers", "header"),
        ("parquet", "maxOffsetsPerTrigger", "maxFilesPerTrigger"),
        ("orc", "lastestFirst", "latestFirst"),
        ("binaryFile", "pathGlobFilters", "pathGlobFilter"),
    ],
)
def test_a_misspelt_option_is_refused_when_the_dag_is_parsed(
    source: str, misspelt: str, meant: str
) -> None:
    with pytest.raises(SpecError) as told:
        operator({"format": source, "schema": "id INT", "options": {misspelt: "{{ x }}"}})
    assert f"has no option {misspelt!r} (did you mean {meant!r}?)" in str(told.value)
    with pytest.raises(SpecError):  # as the driver reads it
        Source.parse({"format": source, "options": {misspelt: "1"}})


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("kafka", {"STARTINGOFFSETS": "earliest", "kafka.bootstrap.servers": "b:9092"}),
        ("kafka", {"subscribe": "orders", "kafka.group.id": "g", "kafka.my.own": "1"}),
        ("kafka", {"kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "1"}),
        ("json", {"path": "/data", "maxfilespertrigger": "1", "fs.s3a.endpoint": "https://s"}),
        ("rate", {"rowPerSecond": "1"}),
        ("my.own.Format", {"startingOffset": "1"}),
        ("delta", {"startingVersions": "1"}),
    ],
)
def test_option_that_spark_reads_or_may_pass_on_is_accepted(
    source: str, options: dict[str, str]
) -> None:
    operator({"format": source, "options": options})  # pytest makes an error of a warning
    assert list(doubtful_options(source, options)) == []


@pytest.mark.parametrize(
    ("source", "option", "said"),
    [
        ("json", "fasterPlease", "'json' has no option 'fasterPlease'"),
        ("kafka", "fs.s3a.endpoint", "'kafka' has no option 'fs.s3a.endpoint'"),
        ("kafka", "kafka.bootstrap.server", "did you mean 'kafka.bootstrap.servers'?"),
        ("kafka", "kafka.security.protocal", "did you mean 'kafka.security.protocol'?"),
    ],
)
def test_option_that_may_be_misspelt_is_warned_of(source: str, option: str, said: str) -> None:
    with pytest.warns(UserWarning, match="stream: source: ") as warned:
        operator({"format": source, "schema": "id INT", "options": {option: "1"}})
    assert said in str(warned[0].message)


@pytest.mark.parametrize("name", ["csv", "json", "orc", "parquet", "text", "xml"])
def test_every_option_that_pyspark_names_is_known(name: str) -> None:
    reader = inspect.signature(getattr(DataStreamReader, name))
    assert set(reader.parameters) - {"self", "schema"} <= set(known_options(name))


# --------------------------------------------------------------------------- a Lance dataset

LANDING = "/data/landing.lance"


def lance_source(**options: str) -> dict[str, Any]:
    return {"format": "lance", "options": {"path": LANDING} | options}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"format": "lance"}, "path is missing, the dataset to read"),
        ({"format": "lance", "schema": "id INT", "options": {"path": LANDING}}, "own schema"),
        (lance_source(startingVersions="1"), "did you mean startingVersion?"),
        (lance_source(maxRowsPerTrigger="0"), "maxRowsPerTrigger must be a whole number of 1"),
        (lance_source(readChangeFeed="true", ignoreDeletes="true"), "give one of them"),
        (lance_source(path="landing.lance"), "no base URI"),
        (lance_source(path="/data/orders.lance"), "read its own rows for ever"),
        (lance_source() | {"storageOptions": {"key": "k"}}, r"unknown \['storageOptions'\]"),
    ],
)
def test_a_wrong_lance_source_is_refused_when_the_dag_is_parsed(
    source: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        operator(source)


def test_a_source_path_is_relative_to_the_connection_as_the_datasets_name_is() -> None:
    names = {"uri": "orders.lance", "lance_conn_id": "warehouse"}
    operator(lance_source(path="landing.lance"), **names)
    with pytest.raises(SpecError, match="read its own rows for ever"):
        operator(lance_source(path="orders.lance"), **names)
    # In another store, the same name is another dataset.
    operator(lance_source(path="orders.lance"), source_conn_id="landing", **names)


@pytest.mark.parametrize(
    "option", [item.metadata["name"] for item in fields(SourceOptions)], ids=str
)
def test_every_option_of_a_lance_source_can_be_a_template(option: str) -> None:
    operator(lance_source(**{option: "{{ params.value }}"}))


def test_a_source_connection_goes_with_lance_alone() -> None:
    with pytest.raises(SpecError, match="this one has format 'rate': leave it out"):
        operator({"format": "rate", "options": {}}, source_conn_id="landing")
    with pytest.raises(SpecError, match="source_conn_id must be a text"):
        operator(lance_source(), source_conn_id=7)
