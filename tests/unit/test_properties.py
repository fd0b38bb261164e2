from __future__ import annotations

import json

import pytest

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.streaming.epoch import (
    Driver,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
)
from airflow_provider_lance.streaming.properties import (
    auto_cleanup,
    decode_query,
    decode_stamp,
    encode_owner,
    encode_stamp,
    fold_updates,
    key,
    query_ids,
    require_query_id,
)

OWNER = Owner(
    token=3,
    state=OwnerState.ACTIVE,
    generation=1,
    driver=Driver("run", "cid", "s3://b/cp", "app-1", "http://h:4040", "h", 77),
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
    stamp = encode_stamp("q", OWNER, EPOCH, 250)
    assert stamp["streaming.queryId"] == "q"
    assert stamp["streaming.epochId"] == "9"
    assert {"token", "state", "runId", "applicationId", "uiAddress", "checkpointId"} <= set(
        json.loads(encode_owner(OWNER))
    )


def test_an_owner_and_a_fold_come_back_as_they_went() -> None:
    config = {
        key("owner", "q"): encode_owner(OWNER),
        key("stop", "q"): "3",
        **{name: str(value) for name, value in fold_updates("q", 4, 11, "t").items()},
    }
    state = decode_query(config, "q", 12)
    assert state.owner == OWNER
    assert (state.watermark, state.folded_version, state.committed_at) == (4, 11, "t")
    assert state.stop_token == 3
    assert state.version == 12
    assert state.known


def test_a_stamp_comes_back_as_it_went() -> None:
    stamp = decode_stamp(encode_stamp("q", OWNER, EPOCH, 250), "q", 31)
    assert stamp is not None
    assert (stamp.epoch_id, stamp.generation, stamp.token, stamp.version) == (9, 1, 3, 31)
    assert (stamp.rows, stamp.deletes, stamp.fragments, stamp.bytes) == (120, 7, 2, 4096)
    assert stamp.committed_at == "2026-01-02T03:04:05.250+00:00"


def test_another_query_and_no_query_carry_no_stamp() -> None:
    assert decode_stamp(encode_stamp("q", OWNER, EPOCH, 1), "r", 1) is None
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
        decode_stamp(encode_stamp("q", OWNER, EPOCH, 1) | change, "q", 5)


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
