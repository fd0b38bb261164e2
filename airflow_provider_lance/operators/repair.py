"""What a recovery task may change, read from its arguments; and the changes, each one logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Finding, Repair
from airflow_provider_lance.exceptions import PreconditionError, SpecError, TerminalError
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.option_parsers import count
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.repair.actions import (
    fold_watermark,
    release_owner,
    resolve_checkpoint,
    resolve_gap,
)
from airflow_provider_lance.repair.result import RepairResult

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["Decision", "Outcome", "RepairAction", "RepairRequest", "RepairRunner", "known_mapping"]


def known_mapping(given: object, what: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a mapping that has only known names.

    :raises SpecError: it is not a mapping, or a name is unknown.
    """
    if not isinstance(given, Mapping):
        raise SpecError(f"{what} must be a mapping with {list(names)}, got {shown(given)}")
    if unknown := sorted(str(name) for name in given.keys() - set(names)):
        raise SpecError(f"{what}: unknown {unknown}, valid are {list(names)}")
    return dict(given)


# --- The request: pure ---------------------------------------------------------------------------
# Templates render numbers, True and False as text.


def _epoch(given: Any) -> int:
    given = given.strip() if isinstance(given, str) else given
    return NO_EPOCH if given in ("-1", -1) else count(given)


def _truth(given: Any) -> bool:
    word = given.strip().lower() if isinstance(given, str) else given
    if word in ("true", "false"):
        return bool(word == "true")
    if not isinstance(word, bool):
        raise ValueError
    return word


def _location(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError
    return given


_READERS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "epoch": (_epoch, "be the number of an epoch"),
    "landed": (_truth, "be True or False"),
    "after_version": (count, "be the foldedVersion of the LS205 finding that it answers"),
    "location": (_location, "name the checkpoint from which the query continues"),
    "proven_dead": (_truth, "be True or False"),
    "for_good": (_truth, "be True or False"),
}
_DECISIONS = {
    "release": ("epoch", "proven_dead", "for_good"),
    "resolve_gap": ("epoch", "landed", "after_version", "proven_dead"),
    "resolve_checkpoint": ("epoch", "location", "proven_dead"),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One explicit decision about one query; void once the query has advanced.

    ``name`` is ``release``, ``resolve_gap`` or ``resolve_checkpoint``. ``epoch`` is the query's
    newest, or the one in doubt: then ``landed`` answers for it, as it was after the fold at
    ``after_version``. ``location`` is the checkpoint from which the query continues.
    """

    name: str
    query_id: str
    epoch: int
    landed: bool = False
    after_version: int | None = None
    location: str = ""
    proven_dead: bool = False
    """A person has verified that no driver of the query runs."""
    for_good: bool = False
    """The stream is not to run again."""

    @classmethod
    def read(cls, name: str, query_id: str, given: object) -> Self:
        """Read an operator's argument.

        :raises SpecError: an unknown name, or a value of the wrong form.
        """
        values: dict[str, Any] = {"proven_dead": False, "for_good": False}
        values |= known_mapping(given, name, _DECISIONS[name])
        for field in _DECISIONS[name]:
            reader, form = _READERS[field]
            try:
                values[field] = reader(values.get(field))
            except ValueError:
                raise SpecError(
                    f"{name}: {field} must {form}, got {shown(values.get(field))}"
                ) from None
        return cls(name, query_id, **values)


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """Everything that a task may change: ``repair`` applies to each query that is checked."""

    repair: frozenset[Repair] = frozenset()
    decision: Decision | None = None

    @classmethod
    def parse(
        cls, *, query_ids: Sequence[str], repair: object, **decisions: Mapping[str, Any] | None
    ) -> Self:
        """Read an operator's rendered arguments.

        :param decisions: ``release``, ``resolve_gap`` and ``resolve_checkpoint``.
        :raises SpecError: an unknown name, a wrong form, or not exactly one query to act on.
        """
        asked = [name for name, value in decisions.items() if value is not None]
        if len(asked) > 1:
            raise SpecError(f"{' and '.join(asked)} are two decisions: give each a task of its own")
        if asked and len(query_ids) != 1:
            raise SpecError(
                f"{asked[0]} acts on one query: name it, and only it, in query_ids; got "
                f"{list(query_ids) or 'none, which means all'}"
            )
        made = [Decision.read(name, query_ids[0], decisions[name]) for name in asked]
        return cls(_repairs(repair), made[0] if made else None)


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


# --- The changes ---------------------------------------------------------------------------------


class Outcome(StrEnum):
    """The outcome of an action."""

    REPAIRED = "Repaired"
    NOTHING = "Nothing to repair"
    REFUSED = "Not repaired"


@dataclass(frozen=True, slots=True)
class RepairAction(JsonRecord):
    """One action that was done or tried: the dataset's config before and after."""

    what: str
    query_id: str
    outcome: Outcome
    sentence: str
    before: str
    after: str


class RepairRunner:
    """Does what a task may do to one dataset; every function it calls checks again by itself."""

    def __init__(
        self,
        port: LanceDatasetPort,
        request: RepairRequest,
        *,
        by: str,
        checkpoint_location: str | None,
        connection_arguments: str,
        log: Logger,
    ) -> None:
        self._port, self._request, self._log = port, request, log
        self._how: dict[str, Any] = {
            "by": by,
            "checkpoint_location": checkpoint_location,
            "storage_options": port.storage_options,
            "connection_arguments": connection_arguments,
        }

    def decide(self) -> list[RepairAction]:
        """Do what the request decides, for the epoch that it names.

        :raises TerminalError: it cannot be done, or the query has advanced since.
        :raises TransientError: the store refused too often.
        """
        decision = self._request.decision
        if decision is None:
            return []
        how = self._how | {"proven_dead": decision.proven_dead}
        if decision.name == "resolve_gap":
            how |= {"epoch": decision.epoch, "landed": decision.landed}
            act = partial(resolve_gap, **how, after_version=decision.after_version)
        else:
            self._refuse_if_advanced(decision)
            act = partial(release_owner, **how, for_good=decision.for_good)
            if decision.name == "resolve_checkpoint":
                act = partial(
                    resolve_checkpoint, **how | {"checkpoint_location": decision.location}
                )
        return [self._act(decision.name, decision.query_id, act)]

    def repair(self, report: CheckReport) -> list[RepairAction]:
        """Repair what may be repaired without asking; leave alone what proves unsafe.

        :raises TransientError: the store refused too often.
        """
        asked = [each for each in Repair if each in self._request.repair]  # in a fixed order
        return [
            self._try(finding)
            for each in asked
            for finding in report.findings
            if finding.repair is each
        ]

    def _try(self, finding: Finding) -> RepairAction:
        acts: dict[Repair | None, Callable[[LanceDatasetPort, str], RepairResult]] = {
            Repair.WATERMARK: partial(
                fold_watermark, connection_arguments=self._how["connection_arguments"]
            ),
            Repair.OWNER: partial(release_owner, **self._how),
        }
        what, query_id = str(finding.repair), finding.query_id
        try:
            return self._act(what, query_id, acts[finding.repair])
        except TerminalError as error:
            why, now = f"{type(error).__name__}: {error}", self._standing(query_id)
            action = RepairAction(what, query_id, Outcome.REFUSED, why, now, now)
            self._log.warning(*_as_log(action))
            return action

    def _act(
        self, what: str, query_id: str, act: Callable[[LanceDatasetPort, str], RepairResult]
    ) -> RepairAction:
        before = self._standing(query_id)
        repaired = act(self._port, query_id)
        after = self._standing(query_id)
        outcome = Outcome.REPAIRED if repaired.changed else Outcome.NOTHING
        action = RepairAction(what, query_id, outcome, repaired.sentence, before, after)
        self._log.info(*_as_log(action))
        return action

    def _standing(self, query_id: str) -> str:
        """Return the query's state in the newest version's config, as text."""
        self._port = self._port.latest()
        state = decode_query(self._port.config, query_id, self._port.version)
        held = f"token {state.owner.token} {state.owner.state.value}" if state.owner else "no owner"
        return f"version {state.version}, {held}, folded watermark {state.watermark}"

    def _refuse_if_advanced(self, decision: Decision) -> None:
        now = exact_watermark(self._port.latest(), decision.query_id).epoch
        if now != decision.epoch:
            raise PreconditionError(
                f"query {decision.query_id!r} in {self._port.uri} has epoch watermark {now} now, "
                f"and what was decided is about epoch {decision.epoch}: check it again first"
            )


def _as_log(action: RepairAction) -> tuple[str, ...]:
    """Return an action as a logger's arguments."""
    return (
        "%s: %s. repair=%s query_id=%s before=[%s] after=[%s]",
        action.outcome,
        action.sentence,
        action.what,
        action.query_id,
        action.before,
        action.after,
    )
