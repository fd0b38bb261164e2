"""What a task instance keeps about its driver between tries, in Airflow's task state."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.compat import task_store
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import shown, whole

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["DriverTaskState", "task_key"]

log = logging.getLogger(__name__)

_KEY = "lance_stream"
_RETENTION = timedelta(days=365)
"""A stream outlives Airflow's default of 30 days; the dataset finds what the state no longer has.
"""


def task_key(context: Context) -> str:
    """Return the ``launchedBy`` text of this task try: its names, and the try's number."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{index}#{ti.try_number}"


@dataclass(frozen=True)
class DriverTaskState:
    """The task state of one task instance; survives tries and clears."""

    store: Any
    tries: tuple[int, int]
    """This try's number, and the highest that Airflow allows."""
    noted: dict[str, Any]

    @classmethod
    def of(cls, context: Context) -> Self:
        """Read what earlier tries noted; nothing if Airflow offers no task state."""
        store = task_store(context)
        ti = context["ti"]
        noted = store.get(_KEY) if store is not None else None
        return cls(store, (ti.try_number, ti.max_tries), _readable(noted))

    @property
    def launch(self) -> Launch | None:
        """Return the newest launch, ``None`` if it is over."""
        launch = self.noted.get("launch")
        return Launch.from_json(launch) if launch and not self.noted.get("over") else None

    @property
    def over(self) -> str:
        """Return the id of the newest launch if it is over, empty if it is not."""
        launch = self.noted.get("launch") if self.noted.get("over") else None
        return str(launch["launchId"]) if launch else ""

    @property
    def was_cleared(self) -> bool:
        """Return whether a user cleared the task since that launch.

        A clear raises the highest number of tries, a retry does not (seen in Airflow 3.3).
        """
        number, most = self.noted.get("tries") or self.tries
        return number != self.tries[0] and most != self.tries[1]

    def keep(self, launch: Launch, *, over: bool = False) -> None:
        """Note a launch for later tries; ``over`` says that they need not look for it."""
        if self.store is not None:
            note = {"launch": launch.to_json(), "tries": list(self.tries), "over": over}
            self.store.set(_KEY, note, retention=_RETENTION)


def _readable(noted: object) -> dict[str, Any]:
    """Return a readable note, or an empty one: the dataset finds what is missing.

    :param noted: what this version, or another one, stored.
    """
    if noted is None:
        return {}
    try:
        if not isinstance(noted, dict):
            raise SpecError(f"a note must be a mapping, got {shown(noted)}")
        Launch.from_json(noted.get("launch") or {})
        tries = noted.get("tries")
        if not isinstance(tries, list | tuple) or len(tries) != 2:
            raise SpecError(f"tries must be two numbers, got {shown(tries)}")
        return noted | {"tries": tuple(whole(each) for each in tries)}
    except (SpecError, ValueError) as error:
        log.warning("The note of an earlier try cannot be read and is ignored. error=%s", error)
        return {}
