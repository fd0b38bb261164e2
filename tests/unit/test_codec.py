from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.protocol.codec import (
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
from airflow_provider_lance.protocol.model import (
    DoneEpoch,
    Driver,
    EndOffsets,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    StopNote,
)

TIME = "2026-01-02T03:04:05.678+00:00"
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
    time=TIME,
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


def test_keys_on_disk_are_those_of_the_protocol() -> None:
    assert key("lastEpoch", "q") == "spark.lance.streaming.lastEpoch.q"
    assert set(fold_updates("q", 4, 11, "t")) == {
        "spark.lance.streaming.lastEpoch.q",
        "spark.lance.streaming.lastEpochVersion.q",
        "spark.lance.streaming.lastEpochTime.q",
        "spark.lance.streaming.lastDone.q",
    }
    ends = EndOffsets.of(['{"logOffset":4}'])
    stamped = encode_stamp("q", OWNER, replace(EPOCH, ends=ends), 250, "run")
    assert json.loads(stamped["streaming.endOffsets"]) == ['{"logOffset":4}']
    assert decode_stamp(stamped, "q", 9).ends == ends  # type: ignore[union-attr]
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
    done = DoneEpoch(6, EndOffsets.of(["-", '{"t":{"0":17}}']))
    updates = fold_updates("q", 4, 11, TIME, done) | asked
    config = {
        key("owner", "q"): encode_owner(OWNER),
        **{name: str(value) for name, value in updates.items()},
    }
    state = decode_query(config, "q", 12)
    assert state.owner == OWNER
    assert (state.watermark, state.folded_version, state.committed_at) == (4, 11, TIME)
    assert state.done == done
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
def test_stop_note_of_another_request_is_ignored(note: str) -> None:
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
        {key("lastEpoch", "q"): "seven"},
        {key("stop", "q"): ""},
    ],
)
def test_what_this_protocol_cannot_read_is_refused_by_name(damage: dict[str, str]) -> None:
    with pytest.raises(ProtocolVersionError, match="protocol"):
        decode_query(damage, "q", 1)


# Whole numbers that int() reads, and protocol 1 never writes; then numbers out of range.
NO_NUMBER = ["", "x", "1.0", " 1", "1\n", "1_0", "+1", "01", "-0", "１", "²", "1e3", "NaN", "true"]
TOO_LARGE = [str(2**63), "9" * 30, "9" * 5000]


@pytest.mark.parametrize("text", [*NO_NUMBER, *TOO_LARGE, "-1", "-7"])
@pytest.mark.parametrize("word", ["lastEpoch", "lastEpochVersion", "stop"])
def test_a_number_in_the_config_is_read_strictly(word: str, text: str) -> None:
    with pytest.raises(ProtocolVersionError) as caught:
        decode_query({key(word, "q"): text}, "q", 12)
    said = str(caught.value)
    assert key(word, "q") in said
    assert "whole number" in said
    assert "lance-stream resolve config" in said, "what to type"
    assert "upgrade" not in said
    assert len(said) < 700, "the value is shortened"


def test_a_stop_token_is_1_or_more() -> None:
    with pytest.raises(ProtocolVersionError, match="from 1 to"):
        decode_query({key("stop", "q"): "0"}, "q", 1)


@pytest.mark.parametrize(("folded", "fits"), [("0", True), ("12", True), ("13", False)])
def test_history_is_not_folded_above_the_version_that_says_so(folded: str, fits: bool) -> None:
    config = {key("lastEpochVersion", "q"): folded}
    if fits:
        assert decode_query(config, "q", 12).folded_version == int(folded)
    else:
        with pytest.raises(ProtocolVersionError, match="from 0 to 12"):
            decode_query(config, "q", 12)


NO_TIME = ["", "noon", "2026-01-02", "2026-01-02T03:04:05", "0001-01-01T00:00+14:00", "7", "\ud800"]


@pytest.mark.parametrize("text", NO_TIME)
def test_time_of_a_fold_needs_a_time_zone(text: str) -> None:
    with pytest.raises(ProtocolVersionError, match=r"lastEpochTime\.q.*time zone"):
        decode_query({key("lastEpochTime", "q"): text}, "q", 1)


NO_TEXT = [None, 7, 1.5, True, [], {}, "\ud800"]
OWNER_DAMAGE = [
    *(("token", value) for value in (None, "1", 1.9, 1.0, True, 0, -3, 2**63, [], {})),
    *(("generation", value) for value in (None, "1", 1.0, False, -1, 2**63)),
    *(("protocol", value) for value in (None, "1", 1.0, True, 0, -1, 2**63)),
    *(("state", value) for value in (None, "", "ACTIVE", "fenced", 1, ["active"], {})),
    *(("pid", value) for value in (None, "7", 7.0, True, -1, 2**31, 10**400)),
    *(("time", value) for value in (None, 7, 1.5, *NO_TIME)),
    *(
        (word, value)
        for word in ("runId", "checkpointId", "checkpointLocation", "host", "start", "launchId")
        for value in NO_TEXT
    ),
]


@pytest.mark.parametrize(("word", "value"), OWNER_DAMAGE)
def test_a_field_of_the_owner_is_read_strictly(word: str, value: object) -> None:
    record = json.loads(encode_owner(OWNER)) | {word: value}
    with pytest.raises(ProtocolVersionError) as caught:
        decode_query({key("owner", "q"): json.dumps(record)}, "q", 1)
    said = str(caught.value)
    assert f"{word!r} in config key {key('owner', 'q')!r} holds" in said
    assert "lance-stream resolve config" in said, "what to type"
    assert "upgrade" not in said
    assert len(said) < 700


@pytest.mark.parametrize(
    "word", ["protocol", "token", "state", "generation", "pid", "time", "host"]
)
def test_an_owner_without_a_field_is_refused(word: str) -> None:
    record = json.loads(encode_owner(OWNER))
    del record[word]
    with pytest.raises(ProtocolVersionError, match=f"holds no {word!r}"):
        decode_query({key("owner", "q"): json.dumps(record)}, "q", 1)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "7", '"owner"', "{", "\x00"),
        encode_owner(OWNER).replace('"token":3', '"token":Infinity'),
        encode_owner(OWNER).replace('"token":3', '"token":NaN'),
        encode_owner(OWNER).replace('"token":3', f'"token":{"9" * 5000}'),
        '{"x":' * 100_000 + "1" + "}" * 100_000,
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_an_owner_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ProtocolVersionError, match="JSON") as caught:
        decode_query({key("owner", "q"): text}, "q", 1)
    assert len(str(caught.value)) < 800


def test_only_a_newer_protocol_says_upgrade() -> None:
    newer = {"protocol": 2, "token": "of another form"}
    with pytest.raises(ProtocolVersionError, match=r"protocol 2.*: upgrade airflow-provider-lance"):
        decode_query({key("owner", "q"): json.dumps(newer)}, "q", 1)
    # What a newer package's owner goes with is a newer package's too.
    config = {key("owner", "q"): json.dumps(newer), key("lastEpoch", "q"): "a new form"}
    with pytest.raises(ProtocolVersionError, match="upgrade"):
        decode_query(config, "q", 1)


@pytest.mark.parametrize(
    "note",
    [
        '{"token":3.0}',
        '{"token":true}',
        '{"token":3,"launchId":7}',
        '{"token":3,"by":null}',
        '{"token":3,"time":"\\ud800"}',
        "[" * 100_000,
    ],
)
def test_stop_note_with_an_invalid_field_is_ignored(note: str) -> None:
    state = decode_query({key("stop", "q"): "3", key("stopNote", "q"): note}, "q", 1)
    assert (state.stop_token, state.stop_note) == (3, None)


STAMP_DAMAGE = [
    *(
        (word, text)
        for word in ("epochId", "generation", "token", "rows", "deletes", "fragments", "bytes")
        for text in (*NO_NUMBER, *TOO_LARGE, "-1")
    ),
    *(("protocol", text) for text in (*NO_NUMBER, *TOO_LARGE, "-1", "0")),
    *(("durationMs", text) for text in (*NO_NUMBER, *TOO_LARGE, str(2**62), str(-(2**62)))),
    *(("startedAt", text) for text in NO_TIME),
    *(("mode", text) for text in ("", "APPEND", "merge", "append ")),
    ("token", "0"),
    ("runId", "\ud800"),
]


@pytest.mark.parametrize(("word", "text"), STAMP_DAMAGE)
def test_a_stamp_is_read_strictly(word: str, text: str) -> None:
    properties = encode_stamp("q", OWNER, EPOCH, 1, "run") | {f"streaming.{word}": text}
    with pytest.raises(ProtocolVersionError) as caught:
        decode_stamp(properties, "q", 5)
    said = str(caught.value)
    assert f"'streaming.{word}'" in said
    assert "version 5" in said
    assert "queryId" in said
    assert "upgrade" not in said
    assert len(said) < 500


@pytest.mark.parametrize("word", ["protocol", "epochId", "startedAt", "rows", "runId", "mode"])
def test_a_stamp_without_a_property_is_refused(word: str) -> None:
    properties = encode_stamp("q", OWNER, EPOCH, 1, "run")
    del properties[f"streaming.{word}"]
    with pytest.raises(ProtocolVersionError, match=f"no 'streaming.{word}'"):
        decode_stamp(properties, "q", 5)


def test_a_stamp_of_a_newer_protocol_says_upgrade() -> None:
    stamp = encode_stamp("q", OWNER, EPOCH, 1, "run")
    newer = {"streaming.queryId": "q", "streaming.protocol": "2"}
    for properties in (newer, stamp | newer):
        with pytest.raises(ProtocolVersionError, match=r"version 5 .*protocol 2.*upgrade"):
            decode_stamp(properties, "q", 5)


def test_a_clock_that_was_set_back_gives_a_negative_duration() -> None:
    stamp = decode_stamp(encode_stamp("q", OWNER, EPOCH, -2500, "run"), "q", 5)
    assert stamp is not None
    assert stamp.committed_at == "2026-01-02T03:04:02.500+00:00"


def test_queries_are_found_by_owner_or_watermark() -> None:
    config = {key("owner", "b.x"): "…", key("lastEpoch", "a"): "1", "user.key": "v"}
    assert query_ids(config) == ["a", "b.x"]


def test_foreign_auto_cleanup_is_seen() -> None:
    assert auto_cleanup({"lance.auto_cleanup.interval": "20", "x": "y"}) == {
        "lance.auto_cleanup.interval": "20"
    }


@pytest.mark.parametrize("query_id", ["a", "orders-eu.v2_b", "9" * 128])
def test_good_query_ids_are_accepted(query_id: str) -> None:
    assert require_query_id(query_id) == query_id


@pytest.mark.parametrize("query_id", [None, "", " ", "a b", "ü", "a/b", "-a", "9" * 129, "<b>", 7])
def test_bad_query_ids_are_refused(query_id: object) -> None:
    with pytest.raises(SpecError, match="queryId"):
        require_query_id(query_id)


def test_long_offsets_are_kept_as_their_digest() -> None:
    ends = EndOffsets.of(["x" * 5000])
    assert ends.lines is None
    stamped = encode_stamp("q", OWNER, replace(EPOCH, ends=ends), 250, "run")
    assert "streaming.endOffsets" not in stamped
    assert decode_stamp(stamped, "q", 9).ends == ends  # type: ignore[union-attr]


@pytest.mark.parametrize("lines", ["7", "[1]", '["other"]', "{", '"x"'])
def test_offsets_that_are_not_those_of_their_digest_are_refused(lines: str) -> None:
    ends = EndOffsets.of(['{"logOffset":4}'])
    stamped = encode_stamp("q", OWNER, replace(EPOCH, ends=ends), 250, "run")
    with pytest.raises(ProtocolVersionError):
        decode_stamp(stamped | {"streaming.endOffsets": lines}, "q", 9)
