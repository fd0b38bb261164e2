"""Expectations as users write them: what rows should be, and what happens to the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_lance.protocol.decoding import json_value, one_of, plain_text, shown

__all__ = ["Action", "Expectation", "expectations"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MOST = 100


class Action(StrEnum):
    """What happens to a row that does not meet an expectation."""

    WARN = "warn"
    """It lands, and is counted."""
    DROP = "drop"
    """It does not land, and is counted."""
    QUARANTINE = "quarantine"
    """It goes to the quarantine beside the table, and is counted."""
    FAIL = "fail"
    """The query ends; nothing of the epoch is committed."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: a SQL condition over the stream's columns; null counts as not met."""

    name: str
    condition: str
    action: Action

    def to_json(self) -> dict[str, str]:
        """Return the expectation as users write it."""
        return {"name": self.name, "condition": self.condition, "action": self.action.value}


def expectations(value: Any) -> tuple[Expectation, ...]:
    """Read a list of expectations, or the same list as JSON text.

    :raises ValueError: another form, an unknown field or action, a name that occurs twice.
    """
    given = json_value(value) if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise ValueError("a list of {'name', 'condition', 'action'}, or that list as JSON text")
    if len(given) > _MOST:
        raise ValueError(f"a list of at most {_MOST} expectations, this one has {len(given)}")
    found = tuple(map(_expectation, given))
    names = [each.name for each in found]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a list in which each name occurs once; {repeated} do not")
    return found


def _expectation(given: Any) -> Expectation:
    if isinstance(given, Expectation):
        return given
    fields = ("name", "condition", "action")
    if not isinstance(given, Mapping) or set(given) != set(fields):
        raise ValueError(f"a list whose items have exactly {list(fields)}, not {shown(given)}")
    name, condition = given["name"], given["condition"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            "a list whose names are up to 64 letters, digits, '_', '.' and '-', the first a letter "
            f"or '_'; this is one: {shown(name)}"
        )
    if not isinstance(condition, str) or not condition.strip():
        raise ValueError(f"a list whose conditions are SQL; {name!r} has {shown(condition)}")
    try:
        return Expectation(name, plain_text(condition), one_of(Action, given["action"]))
    except ValueError as error:
        raise ValueError(f"a list with a correct {name!r}; its action is {error}") from None
