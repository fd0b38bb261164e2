"""End offsets on disk: how a commit, a fold and a note record where an epoch ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_lance.protocol.decoding import json_object, json_value, plain_text, whole
from airflow_provider_lance.protocol.model import DoneEpoch, EndOffsets

__all__ = [
    "encode_done",
    "encode_ends",
    "ends_of_json",
    "ends_to_json",
    "hexadecimal",
    "read_done",
    "read_ends",
]

_DIGEST, _LINES, _OPTIONS = "endOffsetsDigest", "endOffsets", "digest"


def encode_done(done: DoneEpoch) -> str:
    """Return the JSON kept under ``lastDone.<queryId>``."""
    record: dict[str, Any] = {"epoch": done.epoch_id, **ends_to_json(done.ends)}
    if done.digest:
        record[_OPTIONS] = done.digest
    return json.dumps(record, separators=(",", ":"))


def read_done(text: object) -> DoneEpoch:
    """Read what :func:`encode_done` made.

    :raises ValueError: the text has another form; see :mod:`.decoding`.
    """
    record = json_object(text)
    try:
        epoch_id = whole(record.get("epoch"))
        ends = ends_of_json(record)
        digest = hexadecimal(record[_OPTIONS], _OPTIONS) if _OPTIONS in record else ""
        return DoneEpoch(epoch_id, ends, digest)
    except ValueError as error:
        raise ValueError(f"an epoch that is done ({error})") from None


def ends_to_json(ends: EndOffsets | None) -> dict[str, Any]:
    """Return the fields of a JSON object that record where an epoch ends; empty if unknown."""
    if ends is None:
        return {}
    lines = {} if ends.lines is None else {_LINES: list(ends.lines)}
    return {_DIGEST: ends.digest, **lines}


def ends_of_json(record: Mapping[str, Any]) -> EndOffsets | None:
    """Read what :func:`ends_to_json` made.

    :raises ValueError: a value has another form; see :mod:`.decoding`.
    """
    return _joined(record.get(_DIGEST), record.get(_LINES))


def encode_ends(ends: EndOffsets | None) -> dict[str, str]:
    """Return the transaction properties that record where an epoch ends; empty if unknown."""
    if ends is None:
        return {}
    digest = {f"streaming.{_DIGEST}": ends.digest}
    if ends.lines is None:
        return digest
    return digest | {f"streaming.{_LINES}": json.dumps(ends.lines, separators=(",", ":"))}


def read_ends(properties: Mapping[str, str]) -> EndOffsets | None:
    """Read what :func:`encode_ends` made.

    :raises ValueError: a value has another form; see :mod:`.decoding`.
    """
    lines = properties.get(f"streaming.{_LINES}")
    return _joined(
        properties.get(f"streaming.{_DIGEST}"), None if lines is None else json_value(lines)
    )


def _joined(digest: Any, lines: Any) -> EndOffsets | None:
    if digest is None and lines is None:
        return None
    if lines is None:
        return EndOffsets(hexadecimal(digest))
    if not isinstance(lines, list):
        raise ValueError(f"{_LINES} must be a list of texts")
    ends = EndOffsets.of([plain_text(line) for line in lines])
    if ends.digest != hexadecimal(digest):
        raise ValueError(f"{_LINES} must be those of {_DIGEST}")
    return EndOffsets(ends.digest, tuple(lines))


def hexadecimal(value: Any, name: str = _DIGEST) -> str:
    """Read a SHA-256 as text.

    :raises ValueError: it has another form.
    """
    text = plain_text(value)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{name} must be 64 hexadecimal digits")
    return text
