"""Heal what a recovery check found, as far as its permits go; each deed with before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Finding, Heal
from airflow_provider_lance.exceptions import PreconditionError, TerminalError
from airflow_provider_lance.operators.repair_request import Permits
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.repair.actions import (
    fold_watermark,
    release_owner,
    resolve_checkpoint,
    resolve_gap,
)
from airflow_provider_lance.repair.result import Healed

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["Deed", "Healer", "Outcome"]


class Outcome(StrEnum):
    """How it went."""

    HEALED = "Healed"
    NOTHING = "Nothing to heal"
    REFUSED = "Not healed"


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that was done or tried: what the dataset's config said before and after."""

    what: str
    query_id: str
    outcome: Outcome
    sentence: str
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        document = asdict(self) | {"outcome": self.outcome.value}
        return {"queryId": document.pop("query_id"), **document}


class Healer:
    """Does what a task may do to one dataset; every function it calls looks again by itself."""

    def __init__(
        self,
        port: LanceDatasetPort,
        permits: Permits,
        *,
        by: str,
        checkpoint_location: str | None,
        reach: str,
        log: Logger,
    ) -> None:
        self._port, self._permits, self._log = port, permits, log
        self._how: dict[str, Any] = {
            "by": by,
            "checkpoint_location": checkpoint_location,
            "storage_options": port.storage_options,
            "reach": reach,
        }

    def decide(self) -> list[Deed]:
        """Do what somebody has decided, naming the epoch.

        :raises TerminalError: it cannot be done, or the query has gone on since.
        :raises TransientError: the store refused too often.
        """
        permits, query_id = self._permits, self._permits.query_id
        if (release := permits.release) is not None:
            self._refuse_if_gone_on(release.epoch)
            act = partial(release_owner, **self._how, proven_dead=release.proven_dead)
            return [self._do("release", query_id, act)]
        if (gap := permits.resolve_gap) is not None:
            how = self._how | asdict(gap)
            return [self._do("resolve_gap", query_id, partial(resolve_gap, **how))]
        if (new := permits.resolve_checkpoint) is not None:
            self._refuse_if_gone_on(new.epoch)
            how = self._how | {"checkpoint_location": new.location, "proven_dead": new.proven_dead}
            return [self._do("resolve_checkpoint", query_id, partial(resolve_checkpoint, **how))]
        return []

    def heal(self, report: CheckReport) -> list[Deed]:
        """Heal what may be healed without asking; what proves not to be safe is left as it is.

        :raises TransientError: the store refused too often.
        """
        wanted = [each for each in report.findings if each.heal in self._permits.heal]
        return [self._heal(each) for each in sorted(wanted, key=_order)]

    def _heal(self, finding: Finding) -> Deed:
        acts: dict[Heal | None, Callable[[LanceDatasetPort, str], Healed]] = {
            Heal.WATERMARK: partial(fold_watermark, reach=self._how["reach"]),
            Heal.OWNER: partial(release_owner, **self._how),
        }
        try:
            return self._do(str(finding.heal), finding.query_id, acts[finding.heal])
        except TerminalError as error:
            why, now = f"{type(error).__name__}: {error}", self._standing(finding.query_id)
            deed = Deed(str(finding.heal), finding.query_id, Outcome.REFUSED, why, now, now)
            self._log.warning(*_told(deed))
            return deed

    def _do(self, what: str, query_id: str, act: Callable[[LanceDatasetPort, str], Healed]) -> Deed:
        before = self._standing(query_id)
        healed = act(self._port, query_id)
        after = self._standing(query_id)
        outcome = Outcome.HEALED if healed.changed else Outcome.NOTHING
        deed = Deed(what, query_id, outcome, healed.sentence, before, after)
        self._log.info(*_told(deed))
        return deed

    def _standing(self, query_id: str) -> str:
        """Say how the query stands in the newest version's config."""
        self._port = self._port.latest()
        state = decode_query(self._port.config, query_id, self._port.version)
        held = f"token {state.owner.token} {state.owner.state.value}" if state.owner else "no owner"
        return f"version {state.version}, {held}, folded watermark {state.watermark}"

    def _refuse_if_gone_on(self, epoch: int) -> None:
        query_id = self._permits.query_id
        now = exact_watermark(self._port.latest(), query_id).epoch
        if now != epoch:
            raise PreconditionError(
                f"query {query_id!r} in {self._port.uri} has epoch watermark {now} now, and what "
                f"was decided is about epoch {epoch}: look at it again before you go on"
            )


def _order(finding: Finding) -> int:
    return list(Heal).index(finding.heal) if finding.heal else -1


def _told(deed: Deed) -> tuple[str, ...]:
    """Return a deed as a logger takes it."""
    return (
        "%s: %s. heal=%s query_id=%s before=[%s] after=[%s]",
        deed.outcome,
        deed.sentence,
        deed.what,
        deed.query_id,
        deed.before,
        deed.after,
    )
