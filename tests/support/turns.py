"""Airflow as the runs of one task see it: their states and their notes, one look at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TASK = ("dag", "stream")


class OtherRuns:
    """Stands where Airflow's API would. ``before_look`` is called before each question."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from airflow.sdk.execution_time.xcom import XCom

        self.states: dict[str, str] = {}
        self.notes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.before_look: Callable[[], None] = lambda: None
        patch.setattr(RuntimeTaskInstance, "get_ti_count", staticmethod(self._count))
        patch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(self._states))
        patch.setattr(XCom, "get_one", staticmethod(self._note))

    def add(self, run_id: str, state: str = "running", **note: Any) -> None:
        """Let another run be in a state, with a note if one is given."""
        self.states[run_id] = state
        if note:
            self.notes[run_id] = note

    def _ask(self, what: str, dag_id: str, task_id: str) -> None:
        assert (dag_id, task_id) == TASK
        self.before_look()
        self.asked.append(what)

    def _count(self, *, dag_id: str, task_ids: list[str], map_index: int, states: Any) -> int:
        self._ask("count", dag_id, *task_ids)
        return sum(state in states for state in self.states.values())

    def _states(
        self, *, dag_id: str, task_ids: list[str], map_index: int, run_ids: list[str] | None
    ) -> dict[str, dict[str, str]]:
        self._ask("states", dag_id, *task_ids)
        return {
            run_id: {task_ids[0]: state}
            for run_id, state in self.states.items()
            if run_ids is None or run_id in run_ids
        }

    def _note(self, *, key: str, dag_id: str, task_id: str, run_id: str, map_index: int) -> Any:
        self._ask("note", dag_id, task_id)
        return self.notes.get(run_id)


class Noting:
    """A task instance that keeps its notes where the other runs read them."""

    def __init__(self, runs: OtherRuns, run_id: str) -> None:
        self._runs, self._run_id = runs, run_id

    def xcom_push(self, key: str, value: Any) -> None:
        self._runs.before_look()
        self._runs.notes[self._run_id] = value
