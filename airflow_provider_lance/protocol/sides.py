"""Side tables by name: where they lie, and how a query's own table registers them on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from airflow_provider_lance.protocol.codec import PROTOCOL_VERSION, in_config, key
from airflow_provider_lance.protocol.decoding import json_object, mend_config, plain_text, whole

__all__ = [
    "DELETED_AT",
    "EXPIRES_AT",
    "TOMBSTONES",
    "decode_sides",
    "encode_side",
    "side_key",
    "uri_beside",
]

TOMBSTONES = "tombstones"
"""The name of the side table of deleted keys."""

DELETED_AT, EXPIRES_AT = "__deleted_at", "__expires_at"
"""Its columns of times: when a key was deleted, and from when maintenance may forget it."""


def uri_beside(uri: str, name: str) -> str:
    """Return where a table's side table lies: ``orders.quarantine.lance`` beside ``orders.lance``.

    A URI that does not end in ``.lance`` gets the name appended.
    """
    uri = uri.rstrip("/")
    stem = uri.removesuffix(".lance")
    return f"{stem}.{name}.lance"


def side_key(query_id: str, name: str) -> str:
    """Return the config key that registers a side table; no query id has a slash."""
    return key("side", f"{query_id}/{name}")


def encode_side(query_id: str, name: str, uri: str) -> dict[str, str | None]:
    """Return the config update that registers a side table of a query."""
    record = {"protocol": PROTOCOL_VERSION, "uri": uri}
    return {side_key(query_id, name): json.dumps(record, separators=(",", ":"))}


def decode_sides(config: Mapping[str, str], query_id: str) -> dict[str, str]:
    """Return the URI of each side table that a query has registered, by its name, sorted.

    :raises ProtocolVersionError: a value is newer than this package, or no version of it writes
        such a value; the message names the key.
    """
    start, sides = side_key(query_id, ""), {}
    for config_key in sorted(each for each in config if each.startswith(start)):
        origin = in_config(config_key, mend_config(query_id))
        record = origin.read(config[config_key], json_object)
        origin.refuse_newer(origin.field(record, "protocol", partial(whole, least=1)))
        sides[config_key.removeprefix(start)] = origin.field(record, "uri", _place)
    return sides


def _place(value: object) -> str:
    if not plain_text(value):
        raise ValueError("the URI of a dataset")
    return str(value)
