"""Values as JSON: one case for names, and one rule for unknown names.

Names are camelCase. A newer version may add fields to a record: its reader ignores names that it
does not know, and a missing field gets its default. Options are written by users: an unknown name
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from functools import cache, partial
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import (
    Reader,
    json_value,
    one_of,
    plain_text,
    read_fields,
)
from airflow_provider_lance.protocol.option_parsers import parsed

__all__ = ["JsonRecord", "Options", "camel", "plain"]


def camel(name: str) -> str:
    """Return a Python name in camelCase."""
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: times as ISO texts, durations in seconds."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value


class JsonRecord:
    """Base of frozen dataclasses that travel as JSON objects."""

    __slots__ = ()

    json_name: ClassVar[str] = "a record"
    """What the record is, for the error that refuses another document."""
    json_readers: ClassVar[Mapping[str, Reader]] = {}
    """Readers for fields that accept less than their type allows."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        return {camel(item.name): plain(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made.

        :raises SpecError: a part is missing or has another form; the message omits values, which
            may be secret.
        """
        try:
            return cls.read_json(given)
        except ValueError as error:
            raise SpecError(f"{cls.json_name} must be {error}") from None

    @classmethod
    def read_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made, as a :data:`.decoding.Reader`.

        :raises ValueError: a part is missing or has another form.
        """
        return cls(**cls.read_arguments(given))

    @classmethod
    def read_arguments(cls, given: object) -> dict[str, Any]:
        """Read the constructor's arguments from what :meth:`to_json` made.

        :raises ValueError: a part is missing or has another form.
        """
        readers: Mapping[str, Reader] = _readers(cls)  # type: ignore[arg-type]
        return read_fields(cls, given, readers, camel)


@cache
def _readers(cls: type[JsonRecord]) -> Mapping[str, Reader]:
    """Return the readers for a record's fields whose type is not a simple one."""
    found = {name: _reader(hint) for name, hint in get_type_hints(cls).items()}
    return {name: read for name, read in found.items() if read} | dict(cls.json_readers)


def _reader(hint: Any) -> Reader | None:
    for kind in get_args(hint) or (hint,):
        if isinstance(kind, type) and issubclass(kind, JsonRecord):
            return kind.read_json
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return partial(one_of, kind)
    return _texts if get_origin(hint) is tuple and get_args(hint)[0] is str else None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list of texts")
    return tuple(map(plain_text, value))


class Options:
    """Base of frozen dataclasses that users write; each field is declared with :func:`option`."""

    what: ClassVar[str] = "options"
    """What the options are for, at the beginning of an error message."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read options from a mapping, as a user writes it or as :meth:`to_json` made it.

        :raises SpecError: unknown name, wrong form, missing option, or contradicting options.
        """
        options = cls(**parsed(cls, given, cls.what))
        options.check(given)
        return options

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Read options from JSON text.

        :raises SpecError: not JSON, or as :meth:`parse`.
        """
        try:
            given = json_value(text)
        except ValueError as error:
            raise SpecError(f"{cls.what}: not {error}") from None
        return cls.parse(given)

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse options that contradict each other or are missing.

        :param given: what the user wrote, to tell a default from the same value given.
        :raises SpecError: names the options, and what to do.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the options as :meth:`parse` reads them, secrets included."""
        written = {
            item.metadata["name"]: (item.metadata["write"] or plain)(getattr(self, item.name))
            for item in fields(self)  # type: ignore[arg-type]
        }
        return {name: value for name, value in written.items() if value is not None}

    def dumps(self) -> str:
        """Return the options as JSON text, secrets included: write it to a private file."""
        return json.dumps(self.to_json())
