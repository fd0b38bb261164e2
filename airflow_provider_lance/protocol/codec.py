"""The names on disk: manifest config keys and transaction properties, encoded and decoded.

Nothing else in the package spells these strings. A change of their meaning raises
:data:`PROTOCOL_VERSION`; a reader refuses a newer version by name. Other tools write into the same
config, so every value is read strictly: type, range, and relation to the dataset's version. Unknown
keys and fields are ignored: a later version may have added them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import (
    LARGEST,
    Origin,
    Reader,
    json_object,
    mend_config,
    moment,
    one_of,
    plain_text,
    whole,
    whole_text,
)
from airflow_provider_lance.protocol.end_offsets import (
    encode_done,
    encode_ends,
    hexadecimal,
    read_done,
    read_ends,
)
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    Driver,
    Epoch,
    EpochStamp,
    OutputMode,
    Owner,
    OwnerState,
    QueryState,
    StopNote,
)
from airflow_provider_lance.protocol.row_checks import RowChecks

__all__ = [
    "PROTOCOL_VERSION",
    "auto_cleanup",
    "consumer_ids",
    "decode_query",
    "decode_stamp",
    "encode_owner",
    "encode_stamp",
    "encode_stop",
    "fold_updates",
    "in_config",
    "key",
    "query_ids",
    "require_query_id",
]

PROTOCOL_VERSION = 1

_PREFIX = "spark.lance.streaming."
_LAST_EPOCH, _LAST_EPOCH_VERSION = "lastEpoch", "lastEpochVersion"
_LAST_EPOCH_TIME, _LAST_DONE = "lastEpochTime", "lastDone"
_OWNER, _STOP, _STOP_NOTE, _CONSUMER = "owner", "stop", "stopNote", "consumer"
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
"""Records written before these fields existed are read as if the fields were empty."""


def require_query_id(query_id: object) -> str:
    """Return the query id, and refuse one that a config key cannot hold.

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
    """Return the manifest config key of one name (``lastEpoch``, ``owner``, …) and query."""
    return f"{_PREFIX}{word}.{query_id}"


def query_ids(config: Mapping[str, str]) -> list[str]:
    """Return every query that has a trace in a dataset's config, sorted."""
    return _ids(config, _OWNER, _LAST_EPOCH)


def consumer_ids(config: Mapping[str, str]) -> list[str]:
    """Return every consumer that has left a position in a dataset's config, sorted."""
    return _ids(config, _CONSUMER)


def _ids(config: Mapping[str, str], *words: str) -> list[str]:
    starts = [key(word, "") for word in words]
    return sorted({name[len(s) :] for name in config for s in starts if name.startswith(s)})


def auto_cleanup(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make Lance clean up old versions inside any writer's commit."""
    return {name: value for name, value in config.items() if name.startswith("lance.auto_cleanup.")}


_pid = partial(whole, most=2**31 - 1)
"""A pid is a C int wherever Spark runs; no process has a larger one."""


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


@lru_cache(maxsize=64)  # it is the same in each of an owner's commits
def _decode_owner(text: str, config_key: str) -> Owner:
    origin = in_config(config_key, mend_config(config_key.removeprefix(key(_OWNER, ""))))
    record = origin.read(text, json_object)
    origin.refuse_newer(origin.field(record, "protocol", partial(whole, least=1)))
    driver = {
        name: origin.field(record, word, _pid if word == "pid" else plain_text)
        for word, name in (_DRIVER_WORDS | _LATER_DRIVER_WORDS).items()
        if word in record or word not in _LATER_DRIVER_WORDS
    }
    return Owner(
        token=origin.field(record, "token", partial(whole, least=1)),
        state=origin.field(record, "state", partial(one_of, OwnerState)),
        generation=origin.field(record, "generation", whole),
        driver=Driver(**driver),
        time=origin.field(record, "time", moment),
    )


def in_config(config_key: str, mend: str) -> Origin:
    """Return a config key as the origin of a value; ``mend`` says how to fix it there."""
    return Origin(f"config key {config_key!r}", PROTOCOL_VERSION, mend)


def encode_stop(query_id: str, note: StopNote | None) -> dict[str, str | None]:
    """Return the config updates that write a stop request; ``None`` removes the request."""
    if note is None:
        return {key(_STOP, query_id): None, key(_STOP_NOTE, query_id): None}
    record = {"token": note.token, "launchId": note.launch_id, "by": note.by, "time": note.time}
    return {
        key(_STOP, query_id): str(note.token),
        key(_STOP_NOTE, query_id): json.dumps(record, separators=(",", ":")),
    }


def _decode_stop_note(text: str | None, token: int | None) -> StopNote | None:
    """Read the note of the current stop request.

    A note that is unreadable in any part, or belongs to another request, counts as missing:
    ``stop`` alone is a complete request, and a person who sets it by hand may not know about the
    note.
    """
    if text is None or token is None:
        return None
    try:
        record = json_object(text)
        if whole(record.get("token"), least=1) != token:
            return None
        words = ("launchId", "by", "time")
        return StopNote(token, *(plain_text(record.get(word, "")) for word in words))
    except ValueError:
        return None


def decode_query(config: Mapping[str, str], query_id: str, version: int) -> QueryState:
    """Read one query's state from the config of one dataset version.

    :raises ProtocolVersionError: a value is newer than this package, or no version of it writes
        such a value; the message names the key and the command to type.
    """
    owner_key, epoch_key = key(_OWNER, query_id), key(_LAST_EPOCH, query_id)
    folded_key, time_key = key(_LAST_EPOCH_VERSION, query_id), key(_LAST_EPOCH_TIME, query_id)
    stop_key = key(_STOP, query_id)

    def value(name: str, parse: Reader) -> Any:
        origin = in_config(name, mend_config(query_id))
        return origin.read(config[name], parse) if name in config else None

    # The owner first: a newer package's owner explains anything else that looks wrong.
    owner = _decode_owner(config[owner_key], owner_key) if owner_key in config else None
    watermark = value(epoch_key, whole_text)
    # A fold above the dataset's own version would mark unread history as read, and hide its epochs.
    folded = value(folded_key, partial(_version_text, newest=version))
    done_key = key(_LAST_DONE, query_id)
    stop_token = value(stop_key, partial(whole_text, least=1))
    return QueryState(
        query_id=query_id,
        version=version,
        owner=owner,
        watermark=NO_EPOCH if watermark is None else watermark,
        folded_version=folded or 0,
        committed_at=value(time_key, moment),
        done=value(done_key, read_done),
        stop_token=stop_token,
        stop_note=_decode_stop_note(config.get(key(_STOP_NOTE, query_id)), stop_token),
    )


def _version_text(value: object, newest: int) -> int:
    try:
        return whole_text(value, most=newest)
    except ValueError as error:
        raise ValueError(f"{error}, the version of the dataset that says so") from None


def fold_updates(
    query_id: str,
    epoch_id: int,
    version: int,
    committed_at: str | None,
    done: DoneEpoch | None = None,
) -> dict[str, str | None]:
    """Return the config updates that fold history up to ``version`` into the watermark.

    :param done: the newest epoch that is done, with or without rows, and where it ends.
    """
    return {
        key(_LAST_DONE, query_id): encode_done(done) if done else None,
        key(_LAST_EPOCH, query_id): str(epoch_id) if epoch_id > NO_EPOCH else None,
        key(_LAST_EPOCH_VERSION, query_id): str(version),
        key(_LAST_EPOCH_TIME, query_id): committed_at,
    }


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
        **encode_ends(epoch.ends),
        **epoch.checks.encode(),
        **({"streaming.digest": epoch.digest} if epoch.digest else {}),
    }


_WHOLE_STAMP = {
    "epochId": ("epoch_id", 0),
    "generation": ("generation", 0),
    "token": ("token", 1),
    "rows": ("rows", 0),
    "deletes": ("deletes", 0),
    "fragments": ("fragments", 0),
    "bytes": ("bytes", 0),
    "durationMs": ("duration_ms", -LARGEST - 1),
}
"""Integers of a stamp, with the minimum of each. A duration is negative if the wall clock was set
back during the epoch."""


def decode_stamp(properties: Mapping[str, str], query_id: str, version: int) -> EpochStamp | None:
    """Read the stamp of a version's commit; ``None`` if the commit carries no epoch of this query.

    :raises ProtocolVersionError: the stamp is newer than this package, or no version of it writes
        such a stamp; the message names the property.
    """
    if properties.get("streaming.queryId") != query_id:
        return None
    origin = Origin(
        f"the transaction of version {version}, of query {query_id!r},",
        PROTOCOL_VERSION,
        "Give this query a queryId of its own",
    )

    def field(word: str, parse: Reader) -> Any:
        return origin.field(properties, f"streaming.{word}", parse)

    protocol = field("protocol", partial(whole_text, least=1))
    origin.refuse_newer(protocol, f"the epoch in version {version}")
    stamp = EpochStamp(
        query_id=query_id,
        run_id=field("runId", plain_text),
        protocol=protocol,
        mode=field("mode", partial(one_of, OutputMode)).value,
        started_at=field("startedAt", moment),
        version=version,
        ends=origin.read(properties, read_ends),
        checks=origin.read(properties, RowChecks.decode),
        digest=field("digest", hexadecimal) if "streaming.digest" in properties else "",
        **{
            name: field(word, partial(whole_text, least=least))
            for word, (name, least) in _WHOLE_STAMP.items()
        },
    )
    field("durationMs", lambda _: _committed(stamp))
    return stamp


def _committed(stamp: EpochStamp) -> str:
    """Return when the commit was sent; refuse a start and duration that do not add up to a time."""
    try:
        return moment(stamp.committed_at)
    except (OverflowError, ValueError):
        raise ValueError("milliseconds that end within the calendar") from None
