"""What a recovery task may change: automatic repairs, and explicit decisions; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Repair, Severity
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.option_parsers import count

__all__ = [
    "GapAnswer",
    "NewCheckpoint",
    "Release",
    "RepairRequest",
    "parse_severity",
    "parse_tolerance",
]

_NEVER = "never"


@dataclass(frozen=True, slots=True)
class GapAnswer:
    """Whether the one epoch in doubt has landed; ``after_version`` is the fold it is about."""

    epoch: int
    landed: bool
    after_version: int
    proven_dead: bool = False
    """A person has verified that no driver of the query runs."""


@dataclass(frozen=True, slots=True)
class Release:
    """Releases the owner of a query whose newest epoch is ``epoch``."""

    epoch: int
    proven_dead: bool = False


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """Continues a query whose newest epoch is ``epoch`` from the checkpoint that is there now."""

    epoch: int
    location: str
    proven_dead: bool = False


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """Everything that a task may change.

    ``repair`` applies to each query that is checked. The others apply to ``query_id`` only and name
    an epoch: they are void once the query has advanced.
    """

    repair: frozenset[Repair] = frozenset()
    query_id: str = ""
    release: Release | None = None
    resolve_gap: GapAnswer | None = None
    resolve_checkpoint: NewCheckpoint | None = None

    @classmethod
    def parse(
        cls,
        *,
        query_ids: Sequence[str],
        repair: object,
        release: Mapping[str, Any] | None,
        resolve_gap: Mapping[str, Any] | None,
        resolve_checkpoint: Mapping[str, Any] | None,
    ) -> RepairRequest:
        """Read an operator's rendered arguments.

        :raises SpecError: an unknown name, a wrong form, or not exactly one query to act on.
        """
        given = {
            "release": release,
            "resolve_gap": resolve_gap,
            "resolve_checkpoint": resolve_checkpoint,
        }
        asked = [name for name, value in given.items() if value is not None]
        if len(asked) > 1:
            raise SpecError(f"{' and '.join(asked)} are two decisions: give each a task of its own")
        if asked and len(query_ids) != 1:
            raise SpecError(
                f"{asked[0]} acts on one query: name it, and only it, in query_ids; got "
                f"{list(query_ids) or 'none, which means all'}"
            )
        return cls(
            repair=_repairs(repair),
            query_id=query_ids[0] if asked else "",
            release=None if release is None else _release(release),
            resolve_gap=None if resolve_gap is None else _gap(resolve_gap),
            resolve_checkpoint=None
            if resolve_checkpoint is None
            else _checkpoint(resolve_checkpoint),
        )


def parse_severity(value: object) -> Severity | None:
    """Return the severity of that name, ``None`` for ``never``.

    :raises SpecError: there is no such severity.
    """
    known = {each.label: each for each in Severity}
    if isinstance(value, Severity):
        return value
    word = value.strip().lower() if isinstance(value, str) else value
    if word == _NEVER:
        return None
    if not isinstance(word, str) or word not in known:
        raise SpecError(f"fail_on must be one of {[*known, _NEVER]}, got {shown(value)}")
    return known[word]


def parse_tolerance(given: object) -> Tolerance:
    """Return the tolerance with the given values in place of its defaults.

    Times may be a ``timedelta`` or seconds.

    :raises SpecError: an unknown name, or not a number above 0.
    """
    usual = Tolerance()
    if given is None:
        return usual
    known = {each.name: type(getattr(usual, each.name)) for each in fields(Tolerance)}
    values: dict[str, Any] = {}
    for name, value in _known(given, "tolerance", known).items():
        number = value.total_seconds() if isinstance(value, timedelta) else value
        try:
            values[name] = known[name](number)
            positive = values[name] > 0 and not isinstance(number, bool)
        except (TypeError, ValueError, OverflowError):
            positive = False
        if not positive:
            raise SpecError(f"tolerance: {name} must be a number above 0, got {shown(value)}")
    return Tolerance(**values)


def _repairs(given: object) -> frozenset[Repair]:
    names = [given] if isinstance(given, str) else given
    known = [each.value for each in Repair]
    if not isinstance(names, Sequence | set | frozenset):
        raise SpecError(f"repair must be a list of {known}, got {shown(given)}")
    if wrong := [name for name in names if name not in known]:
        raise SpecError(
            f"repair: unknown {shown(wrong)}, valid are {known}; anything else is done only on "
            "request, by release, resolve_gap or resolve_checkpoint with the epoch named"
        )
    return frozenset(Repair(name) for name in names)


def _release(given: object) -> Release:
    value = _known(given, "release", ("epoch", "proven_dead"))
    return Release(_epoch(value, "release"), _is_dead(value, "release"))


def _gap(given: object) -> GapAnswer:
    value = _known(given, "resolve_gap", ("epoch", "landed", "after_version", "proven_dead"))
    landed = _truth(value.get("landed"), "resolve_gap: landed")
    epoch = _epoch(value, "resolve_gap")
    try:
        after = count(value.get("after_version"))
    except ValueError:
        raise SpecError(
            "resolve_gap: after_version must be the foldedVersion of the LS205 finding that it "
            f"answers, got {shown(value.get('after_version'))}"
        ) from None
    return GapAnswer(epoch, landed, after, _is_dead(value, "resolve_gap"))


def _checkpoint(given: object) -> NewCheckpoint:
    value = _known(given, "resolve_checkpoint", ("epoch", "location", "proven_dead"))
    location = value.get("location")
    if not isinstance(location, str) or not location.strip():
        raise SpecError(
            "resolve_checkpoint: location must name the checkpoint from which the query goes on, "
            f"got {location!r}"
        )
    what = "resolve_checkpoint"
    return NewCheckpoint(_epoch(value, what), location, _is_dead(value, what))


def _known(given: object, what: str, names: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SpecError(f"{what} must be a mapping with {list(names)}, got {shown(given)}")
    if unknown := sorted(str(name) for name in given.keys() - set(names)):
        raise SpecError(f"{what}: unknown {unknown}, valid are {list(names)}")
    return dict(given)


def _epoch(value: Mapping[str, Any], what: str) -> int:
    """Read the epoch, which a template renders as text."""
    given = value.get("epoch")
    try:
        given = given.strip() if isinstance(given, str) else given
        return NO_EPOCH if given in ("-1", -1) else count(given)
    except ValueError:
        said = f"{what}: epoch must be the number of an epoch, got {shown(given)}"
        raise SpecError(said) from None


def _is_dead(value: Mapping[str, Any], what: str) -> bool:
    return _truth(value.get("proven_dead", False), f"{what}: proven_dead")


def _truth(given: object, what: str) -> bool:
    """Read true or false, which a template renders as text."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.strip().lower() in ("true", "false"):
        return given.strip().lower() == "true"
    raise SpecError(f"{what} must be True or False, got {shown(given)}")
