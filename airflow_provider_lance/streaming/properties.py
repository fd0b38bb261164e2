"""The words on disk: manifest config keys and transaction properties, encoded and decoded.

Nothing else in the package spells these strings. Whoever changes their meaning raises
:data:`PROTOCOL_VERSION`; a reader refuses a newer one by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.streaming.epoch import (
    NO_EPOCH,
    DoneEpoch,
    Driver,
    EndOffsets,
    Epoch,
    EpochStamp,
    Owner,
    OwnerState,
    QueryState,
    StopNote,
)

__all__ = [
    "PROTOCOL_VERSION",
    "auto_cleanup",
    "decode_query",
    "decode_stamp",
    "encode_owner",
    "encode_stamp",
    "encode_stop",
    "fold_updates",
    "key",
    "query_ids",
    "require_query_id",
]

PROTOCOL_VERSION = 1

_PREFIX = "spark.lance.streaming."
_LAST_EPOCH, _LAST_EPOCH_VERSION, _LAST_EPOCH_TIME, _LAST_DONE = (
    "lastEpoch",
    "lastEpochVersion",
    "lastEpochTime",
    "lastDone",
)
_OWNER, _STOP, _STOP_NOTE = "owner", "stop", "stopNote"
_QUERY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_DRIVER_WORDS = {
    "runId": "run_id",
    "checkpointId": "checkpoint_id",
    "checkpointLocation": "checkpoint_location",
    "applicationId": "application_id",
    "uiAddress": "ui_address",
    "host": "host",
    "pid": "pid",
}
_LATER_DRIVER_WORDS = {"start": "start", "launchId": "launch_id", "launchedBy": "launched_by"}
"""Records that were written before these words read as if they were empty."""


def require_query_id(query_id: object) -> str:
    """Return the query id, or refuse one that a config key cannot hold.

    :raises SpecError: missing, empty, longer than 128 characters or with other characters than
        letters, digits, ``.``, ``_`` and ``-``.
    """
    if not isinstance(query_id, str) or not query_id:
        raise SpecError(
            "queryId is missing: give the query one stable, globally unique name; "
            "it is the idempotency key of every epoch"
        )
    if not _QUERY_ID.fullmatch(query_id):
        raise SpecError(
            f"queryId {query_id!r} cannot be part of a config key: use up to 128 letters, digits, "
            "'.', '_' and '-', the first a letter or digit"
        )
    return query_id


def key(word: str, query_id: str) -> str:
    """Return the manifest config key of one word (``lastEpoch``, ``owner``, …) and query."""
    return f"{_PREFIX}{word}.{query_id}"


def query_ids(config: Mapping[str, str]) -> list[str]:
    """List every query that has a trace in a dataset's config, sorted."""
    found = {
        name.removeprefix(f"{_PREFIX}{word}.")
        for name in config
        for word in (_OWNER, _LAST_EPOCH)
        if name.startswith(f"{_PREFIX}{word}.")
    }
    return sorted(found)


def auto_cleanup(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make Lance clean old versions up inside anyone's commit."""
    return {name: value for name, value in config.items() if name.startswith("lance.auto_cleanup.")}


def encode_owner(owner: Owner) -> str:
    """Return an owner as the JSON kept under ``owner.<queryId>``."""
    fields = asdict(owner.driver)
    record = {
        "token": owner.token,
        "state": owner.state.value,
        "generation": owner.generation,
        "protocol": PROTOCOL_VERSION,
        "time": owner.time,
        **{word: fields[name] for word, name in (_DRIVER_WORDS | _LATER_DRIVER_WORDS).items()},
    }
    return json.dumps(record, separators=(",", ":"))


@lru_cache(maxsize=64)  # it is the same after each of an owner's commits
def _decode_owner(text: str, config_key: str) -> Owner:
    try:
        record = json.loads(text)
        _refuse_newer(int(record["protocol"]), config_key)
        driver = {name: record[word] for word, name in _DRIVER_WORDS.items()}
        for word, name in _LATER_DRIVER_WORDS.items():
            driver[name] = str(record.get(word, ""))
        return Owner(
            token=int(record["token"]),
            state=OwnerState(record["state"]),
            generation=int(record["generation"]),
            driver=Driver(**driver),
            time=str(record["time"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolVersionError(
            f"config key {config_key!r} holds {text!r}, which is no owner record of protocol "
            f"{PROTOCOL_VERSION} ({type(error).__name__}: {error}); was it written by another tool?"
        ) from error


def encode_stop(query_id: str, note: StopNote | None) -> dict[str, str | None]:
    """Return the config updates of a stop request, or those that take one away."""
    if note is None:
        return {key(_STOP, query_id): None, key(_STOP_NOTE, query_id): None}
    record = {"token": note.token, "launchId": note.launch_id, "by": note.by, "time": note.time}
    return {
        key(_STOP, query_id): str(note.token),
        key(_STOP_NOTE, query_id): json.dumps(record, separators=(",", ":")),
    }


def _decode_stop_note(text: str | None, token: int | None) -> StopNote | None:
    """Read the note of the stop request that stands.

    One that cannot be read, or is of another request, is none: whoever sets ``stop`` by hand need
    not know of it.
    """
    if text is None or token is None:
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("token") != token:
        return None
    launch_id, by, time = (str(record.get(word) or "") for word in ("launchId", "by", "time"))
    return StopNote(token, launch_id, by, time)


def _refuse_newer(protocol: int, where: str) -> None:
    if protocol > PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"{where} was written with protocol {protocol}, this package speaks "
            f"{PROTOCOL_VERSION}: upgrade airflow-provider-lance here, or stop the newer driver"
        )


def decode_query(config: Mapping[str, str], query_id: str, version: int) -> QueryState:
    """Read one query's state from the config of one dataset version.

    :raises ProtocolVersionError: the owner record is newer than this package, or not ours.
    """
    owner_key = key(_OWNER, query_id)
    watermark = _integer(config, key(_LAST_EPOCH, query_id))
    owner = _decode_owner(config[owner_key], owner_key) if owner_key in config else None
    stop_token = _integer(config, key(_STOP, query_id))
    return QueryState(
        query_id=query_id,
        version=version,
        owner=owner,
        watermark=NO_EPOCH if watermark is None else watermark,
        folded_version=_integer(config, key(_LAST_EPOCH_VERSION, query_id)) or 0,
        committed_at=config.get(key(_LAST_EPOCH_TIME, query_id)),
        done=_decode_done(config.get(key(_LAST_DONE, query_id)), key(_LAST_DONE, query_id)),
        stop_token=stop_token,
        stop_note=_decode_stop_note(config.get(key(_STOP_NOTE, query_id)), stop_token),
    )


def _integer(config: Mapping[str, str], name: str) -> int | None:
    if name not in config:
        return None
    try:
        return int(config[name])
    except ValueError as error:
        raise ProtocolVersionError(
            f"config key {name!r} holds {config[name]!r} where protocol {PROTOCOL_VERSION} "
            "has an integer; was it written by another tool?"
        ) from error


def fold_updates(
    query_id: str,
    epoch_id: int,
    version: int,
    committed_at: str | None,
    done: DoneEpoch | None = None,
) -> dict[str, str | None]:
    """Return the config updates that fold history up to ``version`` into the watermark.

    :param done: the newest epoch that is done, if it is not the one of the watermark or its end
        offsets are known.
    """
    return {
        key(_LAST_DONE, query_id): _encode_done(done) if done else None,
        key(_LAST_EPOCH, query_id): str(epoch_id) if epoch_id > NO_EPOCH else None,
        key(_LAST_EPOCH_VERSION, query_id): str(version),
        key(_LAST_EPOCH_TIME, query_id): committed_at,
    }


def _encode_done(done: DoneEpoch) -> str:
    record = {"epoch": done.epoch_id, **_encode_ends(done.ends)}
    return json.dumps(record, separators=(",", ":"))


@lru_cache(maxsize=64)
def _decode_done(text: str | None, config_key: str) -> DoneEpoch | None:
    if text is None:
        return None
    try:
        record = json.loads(text)
        epoch_id = record["epoch"]
        if type(epoch_id) is not int or epoch_id < 0:
            raise ValueError(f"epoch {epoch_id!r}")
        return DoneEpoch(epoch_id, _decode_ends(record))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolVersionError(
            f"config key {config_key!r} holds {text[:200]!r}, which protocol {PROTOCOL_VERSION} "
            f"cannot read ({type(error).__name__}); was it written by another tool?"
        ) from error


def _encode_ends(ends: EndOffsets | None) -> dict[str, object]:
    if ends is None:
        return {}
    found: dict[str, object] = {"endOffsetsDigest": ends.digest}
    return found | ({} if ends.lines is None else {"endOffsets": list(ends.lines)})


def _decode_ends(record: Mapping[str, object]) -> EndOffsets | None:
    digest, lines = record.get("endOffsetsDigest"), record.get("endOffsets")
    if digest is None:
        return None
    if not isinstance(digest, str):
        raise TypeError("endOffsetsDigest")
    if lines is None:
        return EndOffsets(digest)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise TypeError("endOffsets")
    if EndOffsets.of(lines).digest != digest:
        raise ValueError("endOffsets are not those of their digest")
    return EndOffsets(digest, tuple(lines))


def encode_stamp(
    query_id: str, owner: Owner, epoch: Epoch, duration_ms: int, run_id: str
) -> dict[str, str]:
    """Return the transaction properties of the commit that carries an epoch's data."""
    return {
        "streaming.queryId": query_id,
        "streaming.epochId": str(epoch.epoch_id),
        "streaming.generation": str(owner.generation),
        "streaming.token": str(owner.token),
        "streaming.runId": run_id,
        "streaming.protocol": str(PROTOCOL_VERSION),
        "streaming.mode": epoch.mode.value,
        "streaming.rows": str(epoch.rows),
        "streaming.deletes": str(epoch.deletes),
        "streaming.fragments": str(len(epoch.fragments)),
        "streaming.bytes": str(epoch.bytes),
        "streaming.startedAt": epoch.started_at,
        "streaming.durationMs": str(duration_ms),
        **{
            f"streaming.{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in _encode_ends(epoch.ends).items()
        },
    }


def _stamped_ends(properties: Mapping[str, str]) -> EndOffsets | None:
    lines = properties.get("streaming.endOffsets")
    record = {"endOffsetsDigest": properties.get("streaming.endOffsetsDigest")}
    return _decode_ends(record | ({} if lines is None else {"endOffsets": json.loads(lines)}))


def decode_stamp(properties: Mapping[str, str], query_id: str, version: int) -> EpochStamp | None:
    """Read the stamp of a version's commit; ``None`` when it carries no epoch of this query.

    :raises ProtocolVersionError: the stamp is newer than this package, or not ours.
    """
    if properties.get("streaming.queryId") != query_id:
        return None
    try:
        protocol = int(properties["streaming.protocol"])
        _refuse_newer(protocol, f"the epoch in version {version}")
        return EpochStamp(
            query_id=query_id,
            epoch_id=int(properties["streaming.epochId"]),
            generation=int(properties["streaming.generation"]),
            token=int(properties["streaming.token"]),
            run_id=properties["streaming.runId"],
            protocol=protocol,
            mode=properties["streaming.mode"],
            rows=int(properties["streaming.rows"]),
            deletes=int(properties["streaming.deletes"]),
            fragments=int(properties["streaming.fragments"]),
            bytes=int(properties["streaming.bytes"]),
            started_at=properties["streaming.startedAt"],
            duration_ms=int(properties["streaming.durationMs"]),
            version=version,
            ends=_stamped_ends(properties),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolVersionError(
            f"version {version} carries properties of query {query_id!r} that protocol "
            f"{PROTOCOL_VERSION} cannot read ({type(error).__name__}: {error}); was it written "
            "by another tool? Give this query a queryId of its own"
        ) from error
