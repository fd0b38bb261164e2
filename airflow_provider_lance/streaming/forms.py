"""How one option is declared and read: the little parsers, and mappings into frozen classes.

A parser takes what a user wrote and returns the value, or raises ``ValueError`` with the form that
it wants, as the end of the sentence "name must be …".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.epoch import OutputMode

__all__ = [
    "count",
    "flag",
    "function",
    "invalid_text",
    "launch_id",
    "location",
    "mode",
    "names",
    "new_generation",
    "option",
    "parsed",
    "positive",
    "strings",
    "text",
    "vector_sizes",
]

_LAUNCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def option(parse: Callable[[Any], Any], default: Any, *, name: str, secret: bool = False) -> Any:
    """Declare one option: how it is read, its name for users, and whether it may be shown."""
    metadata = {"parse": parse, "name": name}
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
        raise SpecError(f"{what}: unknown {unknown}; valid names are {sorted(known)}")
    arguments = {}
    for name, item in known.items():
        if given.get(name) is None:
            continue
        try:
            arguments[item.name] = item.metadata["parse"](given[name])
        except (TypeError, ValueError) as error:
            seen = "" if not item.repr else f", got {given[name]!r}"
            raise SpecError(f"{what}: {name} must be {error}{seen}") from None
    return arguments


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value


def location(value: Any) -> str:
    """Read an absolute path or a URI, without its last slash."""
    place = text(value)
    if not urlsplit(place).scheme and not place.startswith("/"):
        raise ValueError(
            "an absolute path or a URI; a relative path means another folder on each host"
        )
    if not place.strip("/"):
        raise ValueError("a folder of its own, not the root")
    return place.rstrip("/")


def flag(value: Any) -> bool:
    """Read true or false, also as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false")


def positive(value: Any) -> int:
    """Read a whole number of 1 or more, also as text."""
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of 1 or more")
    return value


def count(value: Any) -> int:
    """Read a whole number of 0 or more, also as text."""
    return 0 if value in (0, "0") and not isinstance(value, bool) else positive(value)


def names(value: Any) -> tuple[str, ...]:
    """Read a list of column names, or one text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of column names, or one text with commas between them")
    found = tuple(part.strip() for part in parts if part.strip())
    if len(set(found)) != len(found):
        raise ValueError("a list that names each column once")
    return found


def strings(value: Any) -> Mapping[str, str]:
    """Read a mapping of texts; numbers and flags become texts."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("a mapping of texts")
    plain = {True: "true", False: "false"}
    if any(isinstance(item, list | tuple | dict) or item is None for item in value.values()):
        raise ValueError("a mapping of texts")
    return {
        name: plain[item] if isinstance(item, bool) else str(item) for name, item in value.items()
    }


def vector_sizes(value: Any) -> Mapping[str, int]:
    """Read a mapping of column to vector size, or text like ``embedding:768``."""
    if isinstance(value, str):
        pairs = [part.rpartition(":") for part in value.split(",") if part.strip()]
        value = {name.strip(): size.strip() for name, _, size in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of column to vector size, or text like 'embedding:768'")
    return {str(name): positive(size) for name, size in value.items()}


def mode(value: Any) -> OutputMode:
    """Read an output mode by Spark's name for it."""
    try:
        return OutputMode(str(value).lower())
    except ValueError:
        raise ValueError("one of 'append', 'complete', 'update'") from None


def new_generation(value: Any) -> bool:
    """Read ``fail`` or ``newGeneration`` as whether a new generation is wanted."""
    if value in ("fail", "newGeneration"):
        return bool(value == "newGeneration")
    raise ValueError("'fail' or 'newGeneration'")


def invalid_text(value: Any) -> bool:
    """Read ``refuse`` or ``replace`` as whether text that is not UTF-8 is replaced."""
    if value in ("refuse", "replace"):
        return bool(value == "replace")
    raise ValueError("'refuse' or 'replace'")


def launch_id(value: Any) -> str:
    """Read a name that can be a folder."""
    if isinstance(value, str) and _LAUNCH_ID.fullmatch(value):
        return value
    raise ValueError("a name of letters, digits, '.', '_' and '-', for it becomes a folder")


def function(value: Any) -> str:
    """Read ``module:function``."""
    if isinstance(value, str) and _FUNCTION.fullmatch(value):
        return value
    raise ValueError("'module:function', a function of (spark, arguments) that returns a DataFrame")
