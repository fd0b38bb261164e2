"""Who looks after a dataset: the newest turn of a driver, and what other cleanups keep.

Both are records in the dataset's config. Each driver that compacts and removes old versions writes
the record of its turn first. Lance lets only one of two updates of a key land, so only one of two
drivers begins. Nothing but wasted work depends on it: compaction and cleanup are safe beside each
other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from airflow_provider_lance.protocol.codec import (
    PROTOCOL_VERSION,
    in_config,
    key,
    require_query_id,
)
from airflow_provider_lance.protocol.decoding import Reader, json_object, moment, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["LAST_TURN", "CleanupPolicy", "Turn", "policy_updates", "read_policy", "read_turn"]

LAST_TURN = key("upkeep", "turn")
"""The config key of the newest turn."""

_POLICY = key("upkeep", "cleanup")

_count = partial(whole, least=0)


def _time(value: object) -> datetime:
    return datetime.fromisoformat(moment(value)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Turn(JsonRecord):
    """The newest turn of a driver that looks after the dataset; written as it begins.

    ``version`` and ``fragments`` are those that it found. ``cleaned`` is the version at which the
    newest removal of old versions began, ``cleaned_at`` when; ``removed`` is how many versions this
    driver's run has removed before.
    """

    query_id: str
    at: datetime
    version: int
    fragments: int
    cleaned: int
    cleaned_at: datetime
    removed: int = 0

    json_name: ClassVar[str] = "the record of a driver that looks after the dataset"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "query_id": lambda value: require_query_id(_text(value)),
        "at": _time,
        "cleaned_at": _time,
        "version": _count,
        "fragments": _count,
        "cleaned": _count,
        "removed": _count,
    }

    def updates(self) -> dict[str, str | None]:
        """Return the config update that writes the record."""
        return _written(LAST_TURN, self)


@dataclass(frozen=True, slots=True)
class CleanupPolicy(JsonRecord):
    """What a cleanup that was not a driver's kept, and when it ran; ``older_than`` in seconds."""

    at: datetime
    older_than: int
    retain_versions: int | None = None

    json_name: ClassVar[str] = "the record of a cleanup"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "at": _time,
        "older_than": _count,
        "retain_versions": lambda value: None if value is None else _count(value),
    }


def read_turn(config: Mapping[str, str]) -> Turn | None:
    """Return the newest turn, ``None`` without one.

    :raises ProtocolVersionError: the record is newer than this package, or no version of it writes
        such a record.
    """
    found: Turn | None = _read(config, LAST_TURN, Turn.read_json)
    return found


def read_policy(config: Mapping[str, str]) -> CleanupPolicy | None:
    """Return what the newest cleanup kept that was not a driver's, ``None`` without one.

    :raises ProtocolVersionError: as :func:`read_turn`.
    """
    found: CleanupPolicy | None = _read(config, _POLICY, CleanupPolicy.read_json)
    return found


def policy_updates(policy: CleanupPolicy) -> dict[str, str | None]:
    """Return the config update that records what a cleanup keeps."""
    return _written(_POLICY, policy)


def _written(config_key: str, record: JsonRecord) -> dict[str, str | None]:
    document = {"protocol": PROTOCOL_VERSION, **record.to_json()}
    return {config_key: json.dumps(document, separators=(",", ":"))}


def _read(config: Mapping[str, str], config_key: str, reader: Reader) -> Any:
    if config_key not in config:
        return None
    origin = in_config(config_key, "Remove the key from the config; it is written again")
    record = origin.read(config[config_key], json_object)
    origin.refuse_newer(origin.field(record, "protocol", partial(whole, least=1)))
    return origin.read(record, reader)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("the id of a query")
    return value
