"""The launch request of a driver wrapper; sent through a pipe, because it contains secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import Reader, json_object
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["HOST_SHUTDOWN", "LaunchRequest", "StopSettings"]

HOST_SHUTDOWN = "shutdown of host"
"""The signature of a stop that no task requested."""


def _text(value: object) -> str:
    # Not for a process's environment: its bytes may not be UTF-8; Python keeps them as surrogates.
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _list(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("a list of texts")
    return [_text(each) for each in value]


def _mapping(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of texts")
    return {_text(name): _text(item) for name, item in value.items()}


@dataclass(frozen=True, slots=True)
class StopSettings(JsonRecord):
    """How a driver is asked to stop in order: through its dataset, as that launch.

    ``by`` says who asks; the driver wrapper sets it at the time of the stop.
    """

    uri: str
    query_id: str
    launch_id: str
    by: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    json_readers: ClassVar[Mapping[str, Reader]] = {"storage_options": _mapping}


@dataclass(frozen=True, slots=True)
class LaunchRequest(JsonRecord):
    """What to run, in which environment, and how to end it.

    ``redact`` are texts that must not appear in a log. ``grace`` is the number of seconds between
    the stop request and the kill.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    redact: Sequence[str] = field(repr=False)
    grace: float
    stop: StopSettings | None

    json_name = "a launch request"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "command": _list,
        "environment": _mapping,
        "redact": _list,
    }

    def dumps(self) -> str:
        """Return the request as one JSON document."""
        return json.dumps(self.to_json())

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Read what :meth:`dumps` made.

        :raises SpecError: it is truncated, or not a launch request.
        """
        try:
            document = json_object(text)
        except ValueError as error:
            raise SpecError(f"{cls.json_name} must be {error}") from None
        return cls.from_json(document)
