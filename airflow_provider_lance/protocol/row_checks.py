"""What an epoch's expectations found in its rows, and what was lost: counts in its own commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_lance.protocol.decoding import json_object, plain_text, whole, whole_text

__all__ = ["Met", "RowChecks"]

_EXPECTATIONS = "streaming.expectations"
_NOT_LANDED = ("dropped", "quarantined", "late", "superseded")
_COUNTS = (*_NOT_LANDED, "lost")


@dataclass(frozen=True, slots=True)
class Met:
    """How many rows met an expectation, and how many did not."""

    met: int = 0
    unmet: int = 0

    def __add__(self, other: Met) -> Met:
        """Return the sum."""
        return Met(self.met + other.met, self.unmet + other.unmet)

    @property
    def share(self) -> float:
        """Return the share of the rows that did not meet it, 0 to 1."""
        return self.unmet / (self.met + self.unmet) if self.unmet else 0.0


@dataclass(frozen=True, slots=True)
class RowChecks:
    """The counts of one epoch, or of several: by expectation, and of the rows that did not land.

    The rows that were read are those that landed, ``dropped``, ``quarantined``, ``late`` (the
    table had something newer) and ``superseded`` (the epoch had) together. A row may miss several
    expectations, and is dropped or quarantined once. ``lost`` counts the source's offsets that were
    gone before they could be read, and were passed over.
    """

    expectations: Mapping[str, Met] = field(default_factory=dict)
    dropped: int = 0
    quarantined: int = 0
    late: int = 0
    superseded: int = 0
    lost: int = 0

    def __add__(self, other: RowChecks) -> RowChecks:
        """Return the sum; an expectation that only one side has keeps its counts."""
        names = [*self.expectations, *(n for n in other.expectations if n not in self.expectations)]
        return RowChecks(
            {
                name: self.expectations.get(name, Met()) + other.expectations.get(name, Met())
                for name in names
            },
            *(getattr(self, name) + getattr(other, name) for name in _COUNTS),
        )

    @property
    def not_landed(self) -> int:
        """Return how many rows were read and did not land."""
        return sum(getattr(self, name) for name in _NOT_LANDED)

    def __bool__(self) -> bool:
        """Return whether any row was counted."""
        checked = any(each.met or each.unmet for each in self.expectations.values())
        return checked or any(self._counts().values())

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTS}

    def to_json(self) -> dict[str, Any]:
        """Return the counts as heartbeats, summaries and commands show them."""
        met = [
            {"name": name, "met": each.met, "unmet": each.unmet}
            for name, each in self.expectations.items()
        ]
        return {"expectations": met, **self._counts()}

    @classmethod
    def read_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made, as a :data:`.decoding.Reader`.

        :raises ValueError: a count has another form. One that is missing is 0: earlier releases
            had fewer.
        """
        record = _mapping(given)
        listed = record.get("expectations")
        if not isinstance(listed, list):
            raise ValueError("a mapping with a list of counts")
        met = {
            plain_text(each.get("name")): Met(whole(each.get("met")), whole(each.get("unmet")))
            for each in map(_mapping, listed)
        }
        if len(met) != len(listed):
            raise ValueError("a mapping with counts by different names")
        return cls(met, *(whole(record.get(word, 0)) for word in _COUNTS))

    def encode(self) -> dict[str, str]:
        """Return the counts as transaction properties; nothing for counts that are 0."""
        counts = {name: [each.met, each.unmet] for name, each in self.expectations.items()}
        compact = json.dumps(counts, separators=(",", ":"))
        found = {f"streaming.{name}": str(n) for name, n in self._counts().items() if n}
        return found | ({_EXPECTATIONS: compact} if counts else {})

    @classmethod
    def decode(cls, properties: Mapping[str, str]) -> Self:
        """Read what :meth:`encode` made, as a :data:`.decoding.Reader`.

        :raises ValueError: a count has another form.
        """
        try:
            return cls(
                _read_counts(properties.get(_EXPECTATIONS)),
                *(whole_text(properties.get(f"streaming.{name}", "0")) for name in _COUNTS),
            )
        except ValueError as error:
            raise ValueError(f"counts of expectations and rows, each {error}") from None


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of counts")
    return value


def _read_counts(text: str | None) -> dict[str, Met]:
    if text is None:
        return {}
    found = {}
    for name, pair in json_object(text).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a list of two whole numbers")
        found[plain_text(name)] = Met(*map(whole, pair))
    return found
