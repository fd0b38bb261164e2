"""How one option is declared and read: small parsers, and mappings into frozen classes.

A parser takes the user's text and returns the value, or raises ``ValueError`` with the expected
form, worded as the end of the sentence "name must be …".
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import (
    LARGEST,
    plain_text,
    shown,
    without_credentials,
)
from airflow_provider_lance.protocol.model import OutputMode

__all__ = [
    "MOST_SECONDS",
    "age",
    "contains",
    "count",
    "duration",
    "flag",
    "function",
    "is_absolute",
    "is_local",
    "launch_id",
    "location",
    "mode",
    "names",
    "near_match",
    "option",
    "parsed",
    "positive",
    "scd_type",
    "strings",
    "switch",
    "text",
    "vector_sizes",
]

MOST_SECONDS = 100 * 366 * 24 * 3600
"""A century: the longest duration accepted. Much longer ones exceed the calendar."""

_DIGITS = re.compile(r"[0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)
_BUCKETS = {"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a", "s3n", "wasb", "wasbs"}
_MOST_ITEMS = 2**31 - 1  # the most items of an Arrow list of fixed size


def option(
    parse: Callable[[Any], Any],
    default: Any,
    *,
    name: str,
    secret: bool = False,
    write: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare one option: how it is read, its name for users, whether it may be shown.

    :param write: the inverse of ``parse``, where the value as plain JSON is not.
    """
    metadata = {"parse": parse, "name": name, "write": write}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def parsed(cls: Any, given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Turn a user's mapping into constructor arguments of a frozen class of options.

    :raises SpecError: unknown name, or a value of the wrong form; secrets are not shown.
    """
    if not isinstance(given, Mapping):
        raise SpecError(f"{what}: expected a mapping of options, got {type(given).__name__}")
    known = {item.metadata["name"]: item for item in fields(cls)}
    if unknown := sorted(set(given) - set(known), key=str):
        near = [each for name in unknown if (each := near_match(name, known))]
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        names = f"valid names are {sorted(known)}"
        raise SpecError(f"{what}: unknown {shown(unknown, 300)}; {names}{meant}")
    arguments = {}
    for name, item in known.items():
        if given.get(name) is None:
            continue
        try:
            arguments[item.name] = item.metadata["parse"](given[name])
        except (TypeError, ValueError) as error:
            seen = f", got {shown(given[name])}" if item.repr else ""
            raise SpecError(f"{what}: {name} must be {error}{seen}") from None
    return arguments


def near_match(name: object, known: Iterable[str]) -> str | None:
    """Return the known name closest to a misspelt one, in any case."""
    lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), lower, 1, 0.8) if isinstance(name, str) else []
    return lower[found[0]] if found else None


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return plain_text(value)


def location(value: Any) -> str:
    """Read an absolute path or a URI of a folder, without a trailing slash."""
    place = text(value)
    if _CONTROL.search(place) or place != place.strip():
        raise ValueError("a path or URI without line ends, control characters or space around it")
    if place.startswith("/"):
        scheme, host, path = "file", "", place
    elif not (found := _URI.fullmatch(place)):
        raise ValueError(
            "an absolute path or a URI such as 's3://bucket/folder'; a relative path means another "
            "folder on each host"
        )
    else:
        scheme, host, path = found[1].lower(), found[2] or "", found[3] or ""
    if scheme == "file" and host:
        raise ValueError(f"a path of this host: write 'file:///{host}{path}', with three slashes")
    if without_credentials(place) != place:
        raise ValueError(
            "a URI without credentials, which logs would show: put them into the connection or the "
            "storage options"
        )
    if not _is_host(host):
        raise ValueError(f"a URI with a bucket or host that can be read, not {shown(host)}")
    if not path.strip("/") or (scheme in _BUCKETS and not host):
        raise ValueError("a folder of its own, not the root")
    return place.rstrip("/")


def _is_host(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").netloc == host
    except ValueError:  # brackets that are no IPv6 address; letters that normalise to '/' or '@'
        return False


def is_absolute(place: str) -> bool:
    """Return whether a place is an absolute path or a URI without credentials.

    A bucket without a folder counts.
    """
    if _CONTROL.search(place) or without_credentials(place) != place:
        return False
    found = _URI.fullmatch(place)
    return place.startswith("/") or bool(found and (found[2] or (found[3] or "").strip("/")))


def is_local(place: str) -> bool:
    """Return whether an absolute place is on this host's file systems."""
    return _spelled(place).startswith(":///")


def contains(outer: str, inner: str) -> bool:
    """Return whether one location is another or lies below it, in any spelling."""
    above, below = _spelled(outer), _spelled(inner)
    return below == above or below.startswith(f"{above}/")


def _spelled(place: str) -> str:
    found = None if place.startswith("/") else _URI.fullmatch(place)
    scheme, host, path = (
        (found[1].lower(), found[2] or "", found[3] or "") if found else ("", "", place)
    )
    if scheme == "file":
        scheme, path = "", unquote(path)
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    return f"{scheme}://{host}{posixpath.normpath('/' + path.lstrip('/'))}"


def flag(value: Any) -> bool:
    """Read true or false, also as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false")


def _number(least: int, value: Any, most: int = LARGEST) -> int:
    form = f"a whole number of {least} or more"
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value.lstrip("0")[:20] or "0")  # one digit more than the largest number has
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(form)
    if value > most:
        raise ValueError(f"{form}, and at most {most}")
    return value


positive = partial(_number, 1)
"""Reads an integer of 1 or more, also as text; a second argument bounds it."""

count = partial(_number, 0)
"""Reads an integer of 0 or more, also as text; a second argument bounds it."""

duration = partial(positive, most=MOST_SECONDS)
"""Reads seconds, 1 or more and at most a century, also as text."""

age = partial(count, most=MOST_SECONDS)
"""Reads seconds, 0 or more and at most a century, also as text."""


def scd_type(value: Any) -> int:
    """Read the type of a slowly changing dimension, as Kimball numbers them."""
    if value in (1, 2, "1", "2") and not isinstance(value, bool):
        return int(value)
    raise ValueError("1 (one row for each key) or 2 (its history)")


def names(value: Any) -> tuple[str, ...]:
    """Read a list of column names, or one text separated by commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of column names, or one text with commas between them")
    found = tuple(plain_text(part.strip()) for part in parts if part.strip())
    if len(set(found)) != len(found):
        raise ValueError("a list that names each column once")
    return found


def strings(value: Any) -> Mapping[str, str]:
    """Read a mapping of texts; numbers and flags become texts."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of texts")
    return {_name(name): _string(item) for name, item in value.items()}


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a mapping of texts, whose names are texts that are not empty")
    return plain_text(value)


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) <= LARGEST:
        return str(value)
    if isinstance(value, str):
        return plain_text(value)
    raise ValueError("a mapping of texts, numbers and flags")


def vector_sizes(value: Any) -> Mapping[str, int]:
    """Read a mapping of column to vector size, or text like ``embedding:768``."""
    form = "a mapping of column to vector size, or text like 'embedding:768'"
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, str):
        parts = [part.rpartition(":") for part in value.split(",") if part.strip()]
        pairs = [(name.strip(), size.strip()) for name, _, size in parts]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError(form)
    if not all(isinstance(name, str) and name for name, _ in pairs):
        raise ValueError(form)
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("one that names each column once")
    return {plain_text(name): positive(size, _MOST_ITEMS) for name, size in pairs}


def mode(value: Any) -> OutputMode:
    """Read an output mode by Spark's name for it."""
    try:
        return OutputMode(plain_text(value).lower())
    except ValueError:
        raise ValueError(f"one of {', '.join(repr(str(each)) for each in OutputMode)}") from None


def switch(off: str, on: str, *, name: str) -> Any:
    """Declare an option that is one of two words, by default the first; its value is a flag."""

    def parse(value: Any) -> bool:
        if value in (off, on):
            return bool(value == on)
        raise ValueError(f"{off!r} or {on!r}")

    return option(parse, False, name=name, write=lambda value: on if value else off)


def _matching(pattern: str, form: str, value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(pattern, value):
        return value
    raise ValueError(form)


launch_id = partial(
    _matching,
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}",
    "a name of letters, digits, '.', '_' and '-', because it becomes a folder",
)
"""Reads a name that is valid as a folder name."""

function = partial(
    _matching,
    r"[A-Za-z_][\w.]*:[A-Za-z_]\w*",
    "'module:function', a function of (spark, arguments) that returns a DataFrame",
)
"""Reads ``module:function``."""
