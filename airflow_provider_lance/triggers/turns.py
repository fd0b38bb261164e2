"""One run at a time: a bounded stream waits for the other runs of its task that stream its query.

Airflow's own limits do not count deferred tasks, so the runs coordinate among themselves. Each
keeps a note in its own XCom, *waiting* or *going*, and reads those of the others. A run notes
*going* before it reads the others for the last time. So of two runs that start at once, each sees
the other, and the one with the later logical date yields. The owner record in the dataset shows a
driver that outlived its task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.backends.launch import same_task
from airflow_provider_lance.diagnostics.collect_drivers import with_owner
from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.decoding import Reader, moment, plain_text
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.triggers.threads import Pool, in_thread

__all__ = ["XCOM_KEY", "LanceTurnTrigger", "Turn", "take_turn"]

XCOM_KEY = "lance_turn"
"""The XCom key of a run's note; Airflow removes it when a new try starts."""

_ACTIVE = ["running", "deferred", "scheduled", "queued", "restarting"]
"""A deferred task becomes scheduled and queued before it continues."""

_LONGEST_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Turn(JsonRecord):
    """One run's place among the runs of its task; travels as JSON.

    ``task_key`` is the task try's ``launchedBy`` text. ``rank`` is its logical date, or when it was
    to run. ``silence`` is the age in seconds up to which a heartbeat shows a live driver.
    ``deadline`` is the ISO time at which the task's time is up. ``going`` is what it noted last,
    ``None`` before that. ``others`` are the runs with notes that were seen. ``waits_for`` names
    what it waits for, ``since`` when; empty if it does not wait.
    """

    task_key: str
    rank: str
    uri: str
    query_id: str
    lance_conn_id: str | None = None
    silence: float = 120.0
    poll_interval: float = 5.0
    deadline: str | None = None
    going: bool | None = None
    others: tuple[str, ...] = ()
    waits_for: str = ""
    since: str | None = None

    json_name = "a turn"
    json_readers: ClassVar[Mapping[str, Reader]] = {"deadline": moment, "since": moment}

    @property
    def is_over(self) -> bool:
        """Return whether the task's time is up."""
        return self.deadline is not None and _seconds_since(self.deadline) >= 0

    @property
    def is_too_long(self) -> bool:
        """Return whether it has waited a whole day for the same run."""
        return self.since is not None and _seconds_since(self.since) >= _LONGEST_SECONDS

    def look(self, hook: LanceHook) -> str:
        """Return which of the runs seen before to wait for, as text. Blocks.

        :raises Exception: Airflow or the store did not answer.
        """
        return self.blocked_by(_notes(self, self.others) if self.others else {}, hook)

    def blocked_by(self, notes: Mapping[str, _Note], hook: LanceHook) -> str:
        """Return which run to wait for, as text; empty if none."""
        for run_id, note in sorted(notes.items(), key=lambda each: each[1].place):
            if note.going:
                return f"run {run_id}, which streams query {self.query_id!r} now"
            if not self.going and note.place < self.place:
                return f"run {run_id}, which is to stream query {self.query_id!r} before this one"
        return _living_owner(self, hook)

    @property
    def place(self) -> tuple[str, str]:
        """Return the key by which runs are ordered."""
        return self.rank, _parts(self.task_key)[2]

    def noted(self, ti: Any, *, going: bool) -> Self:
        """Store the run's note, for the others.

        :param ti: Airflow's task instance, which owns the note.
        """
        if self.going is not going:
            note = {"query": [self.uri, self.query_id], "going": going, "rank": self.rank}
            ti.xcom_push(XCOM_KEY, note)
        return replace(self, going=going)

    def waiting_for(self, whom: str) -> Self:
        """Return the turn waiting for ``whom``, since now unless it already waited for the same."""
        if whom and whom == self.waits_for:
            return self
        return replace(self, waits_for=whom, since=datetime.now(UTC).isoformat() if whom else None)


@dataclass(frozen=True, slots=True)
class _Note:
    """Another run's note: whether it streams or waits, and its place."""

    going: bool
    place: tuple[str, str]


def take_turn(turn: Turn, ti: Any, hook: LanceHook) -> Turn:
    """Take the turn if it has come; ``waits_for`` is empty then.

    :param ti: Airflow's task instance, which owns the run's note.
    :raises Exception: Airflow or the store did not answer.
    """
    if not turn.going:
        notes = _notes(turn)
        turn = replace(turn, others=tuple(notes))
        if whom := turn.blocked_by(notes, hook):
            return turn.noted(ti, going=False).waiting_for(whom)
        turn = turn.noted(ti, going=True)
    # Later reads by other runs find this note, and this read finds the notes made before it.
    notes = _notes(turn)
    turn = replace(turn, others=tuple(notes))
    if any(note.going and note.place < turn.place for note in notes.values()):
        turn = turn.noted(ti, going=False)
    return turn.waiting_for(turn.blocked_by(notes, hook))


def _texts(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise ValueError("a list of texts")
    return tuple(plain_text(each) for each in given)


def _notes(turn: Turn, among: tuple[str, ...] = ()) -> dict[str, _Note]:
    """Return the notes of the other active runs about the same query, by run id.

    :param among: ask about these only; a task's whole history may be long.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.sdk.execution_time.xcom import XCom

    dag_id, task_id, mine, index = _parts(turn.task_key)
    task: dict[str, Any] = {"dag_id": dag_id, "task_ids": [task_id], "map_index": index}
    if not among and RuntimeTaskInstance.get_ti_count(**task, states=_ACTIVE) <= 1:
        return {}
    runs = RuntimeTaskInstance.get_task_states(**task, run_ids=list(among) or None)
    found = {}
    for run_id, states in runs.items():
        if run_id == mine or not any(str(state) in _ACTIVE for state in states.values()):
            continue
        note = XCom.get_one(
            key=XCOM_KEY, dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=index
        )
        if isinstance(note, Mapping) and note.get("query") == [turn.uri, turn.query_id]:
            found[run_id] = _Note(note.get("going") is True, (str(note.get("rank")), run_id))
    return found


def _living_owner(turn: Turn, hook: LanceHook) -> str:
    """Return the query's owner as text, if another run of this task launched it and it runs."""
    try:
        port = hook.open(turn.uri)
    except DatasetNotFoundError:
        return ""
    state = decode_query(port.config, turn.query_id, port.version)
    owner = state.owner
    if owner is None or owner.state is OwnerState.RELEASED:
        return ""
    by = owner.driver.launched_by
    if same_task(by, turn.task_key) or _parts(by)[:2] != _parts(turn.task_key)[:2]:
        return ""
    try:
        reports = hook.files(report_location(owner.driver.checkpoint_location))
    except SpecError:
        reports = None
    (seen,) = with_owner((), state, reports, datetime.now(UTC))
    if not seen.liveness(turn.silence).alive or seen.silent >= turn.silence:
        return ""
    return f"the driver of run {_parts(by)[2]}, {seen.where}, which owns query {turn.query_id!r}"


def _parts(launched_by: str) -> tuple[str, str, str, int]:
    """Return DAG, task, run and map index of a ``launchedBy`` text; empty for another form."""
    task, _, _ = launched_by.rpartition("#")
    dag_id, _, rest = task.partition("/")
    task_id, _, rest = rest.partition("/")
    run_id, _, index = rest.rpartition("/")
    try:
        return dag_id, task_id, run_id, int(index)
    except ValueError:
        return "", "", "", -1


def _seconds_since(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


class LanceTurnTrigger(BaseTrigger):
    """
    Fire once no other run that was seen streams the query, or the wait has lasted too long.

    The event is ``{"turn"}``; the task checks once more before it launches a driver.

    :param turn: The turn to wait for, as ``Turn.to_json`` makes it.
    """

    def __init__(self, *, turn: dict[str, Any]) -> None:
        super().__init__()
        self.turn = turn

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"turn": self.turn}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        turn, trouble = Turn.from_json(self.turn), ""
        while not (turn.is_over or turn.is_too_long):
            await asyncio.sleep(turn.poll_interval)
            try:
                # A new hook each time: its credentials may have been replaced meanwhile.
                whom = await in_thread(Pool.LOOKS, turn.look, LanceHook(turn.lance_conn_id))
            except Exception as error:  # any error: waiting longer does no harm
                if str(error) != trouble:
                    self.log.warning(
                        "The order of the runs is unknown; asking again. error=%s", error
                    )
                trouble = str(error)
                continue
            if not whom:
                break
            if whom != turn.waits_for:
                self.log.info("Waiting for %s.", whom)
            turn = turn.waiting_for(whom)
        yield TriggerEvent({"turn": turn.to_json()})
