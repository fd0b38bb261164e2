"""Strict reading of values that another tool, another version or a person may have written.

A reader returns the value, or raises ``ValueError`` with the expected form, worded as the end of
the sentence "… must be …". Readers raise nothing else, whatever the input. :class:`Origin` turns
the ``ValueError`` into this package's own error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

from airflow_provider_lance.exceptions import ProtocolVersionError

__all__ = [
    "LARGEST",
    "Origin",
    "Reader",
    "finite",
    "json_object",
    "json_value",
    "mend_config",
    "moment",
    "one_of",
    "plain_text",
    "read_fields",
    "shown",
    "texts",
    "truth",
    "whole",
    "whole_text",
    "without_credentials",
]

Reader = Callable[[Any], Any]

LARGEST = 2**63 - 1
"""The largest integer that Spark's ``Long`` and Lance can hold."""

_ABSENT = object()
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+@")
_SHOWN = 80


def shown(value: object, most: int = _SHOWN) -> str:
    """Return a value as a message quotes it: on one line, and truncated if it is long."""
    try:
        text = without_credentials(repr(value))
    except Exception:  # such as an int of 5,000 digits, or lists 5,000 deep
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def without_credentials(text: str) -> str:
    """Return a text whose URIs have lost what stands before an ``@``, such as ``KEY:SECRET``."""
    return _CREDENTIALS.sub("", text)


def json_value(text: object) -> Any:
    """Read JSON; numbers that are not finite are refused.

    :param text: a text, or bytes in UTF-8.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"JSON (this is not text but {type(text).__name__})")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("JSON (this is nested too deeply)") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"JSON (byte {error.start} is not UTF-8)") from None
    except ValueError as error:
        raise ValueError(f"JSON ({error})") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def json_object(text: object) -> dict[str, Any]:
    """Read one JSON object."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError(f"one JSON object (this is a {type(value).__name__})")
    return value


def whole(value: object, least: int = 0, most: int = LARGEST) -> int:
    """Read an integer; ``True`` and 1.0 are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(_whole_form(least, most))
    return value


def whole_text(value: object, least: int = 0, most: int = LARGEST) -> int:
    """Read an integer from its decimal digits, exactly as ``str`` writes them.

    ``int`` also accepts ``'１'``, ``' 1 '``, ``'1_0'`` and ``'+1'``, which nothing here writes.
    """
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise ValueError(_whole_form(least, most))
    return whole(int(value), least, most)


def _whole_form(least: int, most: int) -> str:
    upper = "2^63 - 1" if most == LARGEST else str(most)
    lower = "-2^63" if least == -LARGEST - 1 else str(least)
    return f"a whole number from {lower} to {upper}"


def plain_text(value: object) -> str:
    """Read a text that can be encoded as UTF-8; it may be empty."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a text without unpaired surrogates") from None
        return value
    raise ValueError("a text")


def moment(value: object) -> str:
    """Read an ISO 8601 time with its time zone; return the text unchanged."""
    try:
        read = datetime.fromisoformat(plain_text(value))
        if read.tzinfo is not None:
            read.astimezone(UTC)  # the calendar's first and last day may not exist in UTC
            return str(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("an ISO 8601 time with a time zone")


def one_of(kind: type[StrEnum], value: object) -> Any:
    """Read a member of an enum by its text."""
    valid = [each.value for each in kind]
    if isinstance(value, str) and value in valid:
        return kind(value)
    raise ValueError(f"one of {', '.join(map(repr, valid))}")


def truth(value: object) -> bool:
    """Read true or false; a text is refused."""
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def finite(value: object) -> float:
    """Read a finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value
    raise ValueError("a number")


def texts(value: object) -> dict[str, str]:
    """Read a mapping of texts to texts."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of texts")
    return {plain_text(name): plain_text(item) for name, item in value.items()}


def read_fields(
    cls: Any,
    given: object,
    readers: Mapping[str, Reader] | None = None,
    named: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Read the constructor arguments of a dataclass; unknown names are ignored.

    :param readers: how to read the fields whose annotation is not a simple one.
    :param named: maps a field's name to its name in ``given``.
    """
    if not isinstance(given, Mapping):
        raise ValueError("a mapping")
    arguments = {}
    for item in fields(cls):
        name = named(item.name)
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        if name not in given and has_default:
            continue
        kind, _, optional = str(item.type).partition(" | ")
        reader = (readers or {}).get(item.name) or _SIMPLE[kind]
        value = given.get(name)
        try:
            arguments[item.name] = None if value is None and optional else reader(value)
        except ValueError as error:
            raise ValueError(f"one whose {name} is {error}") from None
    return arguments


_SIMPLE: Mapping[str, Reader] = {
    "str": plain_text,
    "int": partial(whole, least=-LARGEST - 1),
    "float": finite,
    "bool": truth,
    "dict[str, str]": texts,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in a dataset a value was read, for the error message.

    ``where`` is the key or the transaction, ``protocol`` the version that this package supports,
    ``mend`` how to fix a value that it cannot read there.
    """

    where: str
    protocol: int
    mend: str

    def read(self, value: object, reader: Reader) -> Any:
        """Read the value found here.

        :raises ProtocolVersionError: the reader refuses it.
        """
        return self._read(self.where, value, reader)

    def field(
        self, record: Mapping[str, Any], name: str, reader: Reader, default: object = _ABSENT
    ) -> Any:
        """Read one field of the record found here.

        :raises ProtocolVersionError: the reader refuses it, or it is missing and has no default.
        """
        value = record.get(name, default)
        if value is _ABSENT:
            raise self._refusal(self.where, f"no {name!r}", "one")
        return self._read(f"{name!r} in {self.where}", value, reader)

    def refuse_newer(self, protocol: int, what: str = "") -> None:
        """Refuse what was written with a newer protocol than this package supports.

        :param what: what was written, if not what was found here.
        :raises ProtocolVersionError: the protocol is newer.
        """
        if protocol > self.protocol:
            raise ProtocolVersionError(
                f"{what or self.where} was written with protocol {protocol}, this package speaks "
                f"{self.protocol}: upgrade airflow-provider-lance here, or stop the newer driver",
                newer=True,
            )

    def _read(self, where: str, value: object, reader: Reader) -> Any:
        try:
            return reader(value)
        except ValueError as error:
            raise self._refusal(where, shown(value), str(error)) from None

    def _refusal(self, where: str, seen: str, wanted: str) -> ProtocolVersionError:
        return ProtocolVersionError(
            f"{where} holds {seen}, where protocol {self.protocol} has {wanted}. Another tool or "
            f"a person wrote it. {self.mend}"
        )


def mend_config(query_id: str) -> str:
    """Return what to type for a query's key that holds a wrong value."""
    return (
        "Put back what was there before: lance-stream resolve config, with the dataset's URI and "
        f"query {query_id}"
    )
