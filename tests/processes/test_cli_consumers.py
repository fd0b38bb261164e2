"""Consumers from a terminal: who reads a dataset, how far, and how one is forgotten."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.protocol.codec import consumer_ids
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.cli import QUERY, Stream, sleeper, typed
from tests.support.consumers import READER, leave, spoil
from tests.support.maintenance import age, files, make

HOUR = 3600


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with sleeper() as process:
        made = Stream(tmp_path, pid=process.pid)
        made.step(3)
        yield made


def known(uri: str) -> list[str]:
    return consumer_ids(open_dataset(uri).config)


# ---------------------------------------------------------------------------------------- status


def test_status_shows_who_writes_and_who_reads(stream: Stream) -> None:
    leave(stream.uri, 1, uri="/data/hourly.lance", ago=120)
    leave(stream.uri, stream.version, consumer_id="daily")
    ran = typed("status", stream.uri)
    assert (ran.status, ran.err) == (0, "")
    head, _, readers = ran.out.partition("read by:")
    assert "watermark 2" in head
    lines = {line.split()[0]: line for line in readers.splitlines() if line.strip()}
    assert "version 1" in lines[READER]
    assert "versions" in lines[READER]
    assert "/data/hourly.lance" in lines[READER]
    assert "2 min ago" in lines[READER]
    assert "nothing" in lines["daily"]


def test_status_in_json_has_both(stream: Stream) -> None:
    leave(stream.uri, 1)
    document = typed("status", stream.uri, "-o", "json").document
    assert [each["queryId"] for each in document["statuses"]] == [QUERY]
    [consumer] = document["consumers"]
    assert (consumer["consumerId"], consumer["version"]) == (READER, 1)
    assert consumer["versionsBehind"] > 1
    assert document["version"] == stream.version
    one = typed("status", stream.uri, QUERY, "-o", "json").document
    assert one == one | {"queryId": QUERY}
    assert "consumers" not in one


def test_status_of_a_dataset_that_only_consumers_know(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    assert typed("status", uri).status == 2
    leave(uri, 3)
    ran = typed("status", uri)
    assert ran.status == 0
    assert ran.out.startswith(f"no streaming query writes to {uri}\n\nread by:\n")
    assert typed("status", uri, "-o", "json").document["statuses"] == []


def test_what_another_tool_wrote_steers_no_terminal(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    leave(uri, 3, consumer_id="evil\x1b[2J", uri="/x\x1b]0;owned\x07")
    spoil(uri, '{"\x1b[31m"', consumer_id="bad")
    ran = typed("status", uri)
    assert ran.status == 1, "as the check"
    assert "\x1b" not in ran.out
    assert r"evil\x1b[2J" in ran.out
    ran = typed("check", uri)
    assert ran.status == 1
    assert "\x1b" not in ran.out + ran.err


def test_check_names_a_consumer_and_what_to_type(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    age(uri, 2 * HOUR)
    leave(uri, 3, ago=8 * 24 * HOUR)
    ran = typed("check", uri)
    assert ran.status == 1
    assert "LS602" in ran.out
    [command] = [line for line in ran.out.splitlines() if " lance-stream forget-consumer" in line]
    assert typed(*shlex.split(command)[1:]).status == 0
    after = typed("check", uri)
    assert (after.status, after.out) == (2, ""), "nobody reads or writes it any longer"


# ------------------------------------------------------------------------------- forget-consumer


def test_a_consumer_is_forgotten_as_the_plan_says(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    leave(uri, 2, ago=7 * HOUR)
    leave(uri, 2, consumer_id="other")
    before = files(uri)
    words = ("forget-consumer", uri, "--consumer", READER)
    plan = typed(*words, "--dry-run")
    assert (plan.status, plan.err) == (0, "")
    assert f"spark.lance.streaming.consumer.{READER} removed" in plan.out
    ran = typed(*words)
    assert ran.status == 2
    assert "needs --yes" in ran.err
    assert f"lance-stream forget-consumer {uri} --consumer {READER} --yes" in ran.out
    document = typed(*words, "--dry-run", "-o", "json").document
    assert (document["done"], document["dryRun"], len(document["writes"])) == (False, True, 1)
    assert files(uri) == before
    done = typed(*words, "--yes", "-o", "json")
    assert (done.status, done.document["done"]) == (0, True)
    assert (done.document["queryId"], done.document["watermark"]) == (READER, None)
    assert known(uri) == ["other"]


@pytest.mark.parametrize("readable", [True, False])
def test_a_consumer_that_may_run_is_forgotten_only_if_it_is_proven_dead(
    tmp_path: Path, readable: bool
) -> None:
    uri = make(tmp_path, 3)
    leave(uri, 2, ago=5 * HOUR)
    if not readable:
        spoil(uri, "{")
    before = files(uri)
    ran = typed("forget-consumer", uri, "--consumer", READER, "--yes")
    assert ran.status == 1
    assert "may run" in ran.err
    assert ("5 h ago" in ran.err) is readable
    assert files(uri) == before
    command = ran.err.strip().rpartition("type: lance-stream ")[2]
    assert typed(*shlex.split(command)).status == 0
    assert known(uri) == []


def test_an_unknown_consumer_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    leave(uri, 2)
    ran = typed("forget-consumer", uri, "--consumer", "houry", "--yes")
    assert ran.status == 2
    assert "'houry'; the consumers it knows: 'hourly'" in ran.err
    assert typed("forget-consumer", uri).status == 2
    both = typed("forget-consumer", uri, "--consumer", READER, "--yes", "--dry-run")
    assert both.status == 2
    assert known(uri) == [READER]
