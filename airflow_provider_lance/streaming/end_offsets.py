"""End offsets on disk: how an epoch's commit and a fold say where the epoch ends in its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_lance.streaming.decoding import json_object, json_value, plain_text, whole
from airflow_provider_lance.streaming.epoch import DoneEpoch, EndOffsets

__all__ = ["encode_done", "encode_ends", "read_done", "read_ends"]

_DIGEST, _LINES = "endOffsetsDigest", "endOffsets"


def encode_done(done: DoneEpoch) -> str:
    """Return the JSON kept under ``lastDone.<queryId>``."""
    ends = {name: json_value(text) for name, text in _parts(done.ends).items()}
    return json.dumps({"epoch": done.epoch_id, **ends}, separators=(",", ":"))


def read_done(text: object) -> DoneEpoch:
    """Read what :func:`encode_done` made.

    :raises ValueError: it is something else, see :mod:`.decoding`.
    """
    record = json_object(text)
    try:
        epoch_id = whole(record.get("epoch"))
        return DoneEpoch(epoch_id, _joined(record.get(_DIGEST), record.get(_LINES)))
    except ValueError as error:
        raise ValueError(f"an epoch that is done ({error})") from None


def encode_ends(ends: EndOffsets | None) -> dict[str, str]:
    """Return the transaction properties that say where an epoch ends; none if that is not known."""
    return {f"streaming.{name}": text for name, text in _parts(ends).items()}


def read_ends(properties: Mapping[str, str]) -> EndOffsets | None:
    """Read what :func:`encode_ends` made.

    :raises ValueError: it is something else, see :mod:`.decoding`.
    """
    digest, lines = (properties.get(f"streaming.{name}") for name in (_DIGEST, _LINES))
    return _joined(*(None if text is None else json_value(text) for text in (digest, lines)))


def _parts(ends: EndOffsets | None) -> dict[str, str]:
    if ends is None:
        return {}
    found: dict[str, Any] = {_DIGEST: ends.digest}
    if ends.lines is not None:
        found[_LINES] = list(ends.lines)
    return {name: json.dumps(value, separators=(",", ":")) for name, value in found.items()}


def _joined(digest: Any, lines: Any) -> EndOffsets | None:
    if digest is None and lines is None:
        return None
    if lines is None:
        return EndOffsets(_digest(digest))
    if not isinstance(lines, list):
        raise ValueError(f"{_LINES} must be a list of texts")
    ends = EndOffsets.of([plain_text(line) for line in lines])
    if ends.digest != _digest(digest):
        raise ValueError(f"{_LINES} must be those of {_DIGEST}")
    return EndOffsets(ends.digest, tuple(lines))


def _digest(value: Any) -> str:
    text = plain_text(value)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{_DIGEST} must be 64 hexadecimal digits")
    return text
