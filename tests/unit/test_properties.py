from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.streaming.epoch import (
    Driver,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    StopNote,
)
from airflow_provider_lance.streaming.properties import (
    auto_cleanup,
    decode_query,
    decode_stamp,
    encode_owner,
    encode_stamp,
    encode_stop,
    fold_updates,
    key,
    query_ids,
    require_query_id,
)

OWNER = Owner(
    token=3,
    state=OwnerState.ACTIVE,
    generation=1,
    driver=Driver(
        "run",
        "cid",
        "s3://b/cp",
        "app-1",
        "http://h:4040",
        "h",
        77,
        start="boot:9",
        launch_id="launch-1",
        launched_by="dag/task/run/-1#1",
    ),
    time="2026-01-02T03:04:05.678+00:00",
)
EPOCH = Epoch(
    epoch_id=9,
    mode=OutputMode.UPDATE,
    fragments=[object(), object()],
    rows=120,
    bytes=4096,
    started_at="2026-01-02T03:04:05.000+00:00",
    deletes=7,
)


def test_the_words_on_disk_are_those_of_the_protocol() -> None:
    assert key("lastEpoch", "q") == "spark.lance.streaming.lastEpoch.q"
    assert set(fold_updates("q", 4, 11, "t")) == {
        "spark.lance.streaming.lastEpoch.q",
        "spark.lance.streaming.lastEpochVersion.q",
        "spark.lance.streaming.lastEpochTime.q",
    }
    stamp = encode_stamp("q", OWNER, EPOCH, 250, "run")
    assert stamp["streaming.queryId"] == "q"
    assert stamp["streaming.epochId"] == "9"
    record = json.loads(encode_owner(OWNER))
    assert {"token", "state", "runId", "applicationId", "uiAddress", "checkpointId"} <= set(record)
    assert (record["launchId"], record["launchedBy"], record["start"]) == (
        "launch-1",
        "dag/task/run/-1#1",
        "boot:9",
    )
    assert encode_stop("q", StopNote(3, "launch-1", "on-call", "t")) == {
        "spark.lance.streaming.stop.q": "3",
        "spark.lance.streaming.stopNote.q": (
            '{"token":3,"launchId":"launch-1","by":"on-call","time":"t"}'
        ),
    }


def test_an_owner_and_a_fold_come_back_as_they_went() -> None:
    asked = encode_stop("q", StopNote(3, "launch-1", "on-call", "t"))
    updates = fold_updates("q", 4, 11, "t") | asked
    config = {
        key("owner", "q"): encode_owner(OWNER),
        **{name: str(value) for name, value in updates.items()},
    }
    state = decode_query(config, "q", 12)
    assert state.owner == OWNER
    assert (state.watermark, state.folded_version, state.committed_at) == (4, 11, "t")
    assert state.stop_token == 3
    assert state.stop_note == StopNote(3, "launch-1", "on-call", "t")
    assert state.version == 12
    assert state.known


def test_an_owner_of_an_earlier_package_has_no_launch() -> None:
    record = json.loads(encode_owner(OWNER))
    for word in ("launchId", "launchedBy", "start"):
        del record[word]
    owner = decode_query({key("owner", "q"): json.dumps(record)}, "q", 1).owner
    driver = replace(OWNER.driver, start="", launch_id="", launched_by="")
    assert owner == replace(OWNER, driver=driver)


@pytest.mark.parametrize("note", ["", "{", "7", "null", "{}", '{"token":4,"by":"on-call"}'])
def test_a_note_that_is_none_of_this_request_is_no_error(note: str) -> None:
    state = decode_query({key("stop", "q"): "3", key("stopNote", "q"): note}, "q", 1)
    assert (state.stop_token, state.stop_note) == (3, None)


def test_a_note_without_a_request_is_no_note() -> None:
    config = {name: str(text) for name, text in encode_stop("q", StopNote(3)).items()}
    del config[key("stop", "q")]
    assert decode_query(config, "q", 1).stop_note is None


def test_a_stamp_comes_back_as_it_went() -> None:
    stamp = decode_stamp(encode_stamp("q", OWNER, EPOCH, 250, "run"), "q", 31)
    assert stamp is not None
    assert (stamp.epoch_id, stamp.generation, stamp.token, stamp.version) == (9, 1, 3, 31)
    assert (stamp.rows, stamp.deletes, stamp.fragments, stamp.bytes) == (120, 7, 2, 4096)
    assert stamp.committed_at == "2026-01-02T03:04:05.250+00:00"


def test_another_query_and_no_query_carry_no_stamp() -> None:
    assert decode_stamp(encode_stamp("q", OWNER, EPOCH, 1, "run"), "r", 1) is None
    assert decode_stamp({}, "q", 1) is None


def test_a_query_that_was_never_there_is_unknown() -> None:
    state = decode_query({}, "q", 1)
    assert not state.known
    assert state.watermark == -1


@pytest.mark.parametrize(
    "damage",
    [
        {key("owner", "q"): "not json"},
        {key("owner", "q"): "{}"},
        {key("owner", "q"): encode_owner(OWNER).replace('"protocol":1', '"protocol":2')},
        {key("lastEpoch", "q"): "seven"},
        {key("stop", "q"): ""},
    ],
)
def test_what_this_protocol_cannot_read_is_refused_by_name(damage: dict[str, str]) -> None:
    with pytest.raises(ProtocolVersionError, match="protocol"):
        decode_query(damage, "q", 1)


@pytest.mark.parametrize("change", [{"streaming.protocol": "2"}, {"streaming.rows": "many"}])
def test_a_stamp_that_cannot_be_read_is_refused_by_name(change: dict[str, str]) -> None:
    with pytest.raises(ProtocolVersionError, match="version 5"):
        decode_stamp(encode_stamp("q", OWNER, EPOCH, 1, "run") | change, "q", 5)


def test_queries_are_found_by_owner_or_watermark() -> None:
    config = {key("owner", "b.x"): "…", key("lastEpoch", "a"): "1", "user.key": "v"}
    assert query_ids(config) == ["a", "b.x"]


def test_foreign_auto_cleanup_is_seen() -> None:
    assert auto_cleanup({"lance.auto_cleanup.interval": "20", "x": "y"}) == {
        "lance.auto_cleanup.interval": "20"
    }


@pytest.mark.parametrize("query_id", ["a", "orders-eu.v2_b", "9" * 128])
def test_good_query_ids(query_id: str) -> None:
    assert require_query_id(query_id) == query_id


@pytest.mark.parametrize("query_id", [None, "", " ", "a b", "ü", "a/b", "-a", "9" * 129, "<b>", 7])
def test_bad_query_ids_are_refused(query_id: object) -> None:
    with pytest.raises(SpecError, match="queryId"):
        require_query_id(query_id)
