"""Repair what a recovery check found, as far as the request allows; log each action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Finding, Repair
from airflow_provider_lance.exceptions import PreconditionError, TerminalError
from airflow_provider_lance.operators.repair_request import RepairRequest
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.json_codec import JsonRecord
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

__all__ = ["Outcome", "RepairAction", "RepairRunner"]


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
        """Do what the request decides, for the epochs that it names.

        :raises TerminalError: it cannot be done, or the query has advanced since.
        :raises TransientError: the store refused too often.
        """
        request, query_id = self._request, self._request.query_id
        if (release := request.release) is not None:
            self._refuse_if_gone_on(release.epoch)
            act = partial(release_owner, **self._how, proven_dead=release.proven_dead)
            return [self._do("release", query_id, act)]
        if (gap := request.resolve_gap) is not None:
            how = self._how | asdict(gap)
            return [self._do("resolve_gap", query_id, partial(resolve_gap, **how))]
        if (new := request.resolve_checkpoint) is not None:
            self._refuse_if_gone_on(new.epoch)
            how = self._how | {"checkpoint_location": new.location, "proven_dead": new.proven_dead}
            return [self._do("resolve_checkpoint", query_id, partial(resolve_checkpoint, **how))]
        return []

    def repair(self, report: CheckReport) -> list[RepairAction]:
        """Repair what may be repaired without asking; leave alone what proves unsafe.

        :raises TransientError: the store refused too often.
        """
        wanted = [each for each in report.findings if each.repair in self._request.repair]
        return [self._heal(each) for each in sorted(wanted, key=_order)]

    def _heal(self, finding: Finding) -> RepairAction:
        acts: dict[Repair | None, Callable[[LanceDatasetPort, str], RepairResult]] = {
            Repair.WATERMARK: partial(
                fold_watermark, connection_arguments=self._how["connection_arguments"]
            ),
            Repair.OWNER: partial(release_owner, **self._how),
        }
        try:
            return self._do(str(finding.repair), finding.query_id, acts[finding.repair])
        except TerminalError as error:
            why, now = f"{type(error).__name__}: {error}", self._standing(finding.query_id)
            action = RepairAction(
                str(finding.repair), finding.query_id, Outcome.REFUSED, why, now, now
            )
            self._log.warning(*_told(action))
            return action

    def _do(
        self, what: str, query_id: str, act: Callable[[LanceDatasetPort, str], RepairResult]
    ) -> RepairAction:
        before = self._standing(query_id)
        repaired = act(self._port, query_id)
        after = self._standing(query_id)
        outcome = Outcome.REPAIRED if repaired.changed else Outcome.NOTHING
        action = RepairAction(what, query_id, outcome, repaired.sentence, before, after)
        self._log.info(*_told(action))
        return action

    def _standing(self, query_id: str) -> str:
        """Return the query's state in the newest version's config, as text."""
        self._port = self._port.latest()
        state = decode_query(self._port.config, query_id, self._port.version)
        held = f"token {state.owner.token} {state.owner.state.value}" if state.owner else "no owner"
        return f"version {state.version}, {held}, folded watermark {state.watermark}"

    def _refuse_if_gone_on(self, epoch: int) -> None:
        query_id = self._request.query_id
        now = exact_watermark(self._port.latest(), query_id).epoch
        if now != epoch:
            raise PreconditionError(
                f"query {query_id!r} in {self._port.uri} has epoch watermark {now} now, and what "
                f"was decided is about epoch {epoch}: look at it again before you go on"
            )


def _order(finding: Finding) -> int:
    return list(Repair).index(finding.repair) if finding.repair else -1


def _told(action: RepairAction) -> tuple[str, ...]:
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
