"""Acknowledged findings: who has seen them, and until when the list shows them muted.

They are kept as Airflow Variables, in the database that the API server reads anyway: the page
writes into no dataset, and needs no right to. Only the page reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.protocol.decoding import json_value
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["HOURS", "Mute", "mute_of", "muted", "read_mutes", "remove_mute", "what_is_wrong"]

HOURS = (1, 8, 24, 168)
"""How long an acknowledgement may hold, unless the findings change before."""
_PREFIX = "lance_page_muted_"
_DESCRIPTION = "Written by the page of Lance streams: an acknowledged finding."


@dataclass(frozen=True, slots=True)
class Mute(JsonRecord):
    """An acknowledgement; times are ISO 8601. ``seen`` is what was wrong when it was given."""

    uri: str
    query_id: str
    by: str
    at: str
    until: str
    seen: tuple[str, ...]

    def covers(self, status: Status, now: datetime) -> bool:
        """Return whether it still holds, and nothing else is wrong than what was acknowledged."""
        wrong = what_is_wrong(status)
        return bool(wrong) and set(wrong) <= set(self.seen) and now < _moment(self.until)


def what_is_wrong(status: Status) -> tuple[str, ...]:
    """Return a stream's findings as an acknowledgement names them; empty if nothing is wrong.

    An error of a later launch or a later time is another one, even under the same code.
    """
    moment = f" {status.launch_id or ''} {status.since or ''}"
    return tuple(
        sorted(
            f"{each.code.value} {each.severity.label}"
            + (moment if each.severity >= Severity.ERROR else "")
            for each in status.findings
            if each.severity >= Severity.WARNING
        )
    )


def muted(mutes: Iterable[Mute], uri: str, status: Status, now: datetime) -> Mute | None:
    """Return the acknowledgement that covers all that is wrong with a stream, if there is one."""
    own = (each for each in mutes if (each.uri, each.query_id) == (uri, status.query_id))
    return next((each for each in own if each.covers(status, now)), None)


def mute_of(uri: str, status: Status, by: str, hours: int) -> Mute:
    """Acknowledge what is wrong with a stream now, and store it.

    Writes into Airflow's database.
    """
    from airflow.models.variable import Variable

    now = datetime.now(UTC)
    until = now + timedelta(hours=hours)
    given = Mute(
        uri=uri,
        query_id=status.query_id,
        by=by,
        at=now.isoformat(timespec="seconds"),
        until=until.isoformat(timespec="seconds"),
        seen=what_is_wrong(status),
    )
    Variable.set(_name(uri, status.query_id), json.dumps(given.to_json()), _DESCRIPTION)
    return given


def remove_mute(uri: str, query_id: str) -> None:
    """Take an acknowledgement back; writes into Airflow's database."""
    from airflow.models.variable import Variable

    Variable.delete(_name(uri, query_id))


def read_mutes() -> list[Mute]:
    """Return all acknowledgements; reads Airflow's database."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(Variable).where(Variable.key.startswith(_PREFIX, autoescape=True))
    with create_session(scoped=False) as session:
        texts = [each.val for each in session.scalars(wanted)]
    return [mute for text in texts if (mute := _decode(text))]


def _name(uri: str, query_id: str) -> str:
    digest = hashlib.sha256(f"{uri}\0{query_id}".encode())
    return _PREFIX + digest.hexdigest()[:40]


def _decode(text: str | None) -> Mute | None:
    """Return a stored acknowledgement; ``None`` if somebody else wrote it, in another form."""
    try:
        found = Mute.read_json(json_value(text or ""))
        _moment(found.until)
    except (KeyError, TypeError, ValueError):
        return None
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
