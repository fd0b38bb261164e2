"""The command that clears a stream's task, as a finding prints it, against Airflow's database."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_lance.protocol.commands import clear_task_line
from tests.support.cli import Ran, python, typed

RUN_ID = "manual__2026-03-01T00:00:00+00:00"
DAG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator

with DAG("lake", schedule=None):
    BashOperator(task_id="first", bash_command="true")
    BashOperator.partial(task_id="orders").expand(bash_command=["true", "false"])
"""
SETUP = """
from airflow.utils.db import initdb
initdb()
from airflow.cli.cli_parser import get_parser
for words in (["dags", "reserialize"], ["dags", "trigger", "lake", "--run-id", %r]):
    arguments = get_parser().parse_args(words)
    arguments.func(arguments)
from airflow.models.taskinstance import TaskInstance
from airflow.models.dagrun import DagRun
from airflow.settings import Session
session = Session()
session.query(TaskInstance).update({"state": "failed", "try_number": 1})
session.query(DagRun).update({"state": "failed"})
session.commit()
"""
STATES = """
from airflow.models.taskinstance import TaskInstance
from airflow.models.dagrun import DagRun
from airflow.settings import Session
session = Session()
found = session.query(TaskInstance).all()
print({f"{each.task_id} {each.map_index}": each.state for each in found})
print([f"{each.state}" for each in session.query(DagRun).all()])
"""
AIRFLOW = "from airflow.__main__ import main; main()"

Type = Callable[..., Ran]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Type:
    """Return what runs Python in an Airflow whose one run has failed."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "lake.py").write_text(DAG)
    environment = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }

    def run(*words: str) -> Ran:
        return python("-c", *words, env=environment)

    made = run(SETUP % RUN_ID)
    assert made.status == 0, made.err
    return run


def test_the_printed_command_clears_exactly_the_named_task_instance(code: Type) -> None:
    line = clear_task_line("lake", RUN_ID, "orders", 1)
    program, *words = shlex.split(line)
    assert program == "airflow"
    planned = code(AIRFLOW, *words[:-1])
    assert planned.status == 2
    assert f"clear task orders of DAG lake, run {RUN_ID}, map index 1, which is fail" in planned.out
    assert line in planned.out
    ran = code(AIRFLOW, *words)
    assert ran.status == 0, ran.err
    states = code(STATES).out.splitlines()[-2:]
    assert states == [
        "{'first -1': 'failed', 'orders 0': 'failed', 'orders 1': None}",
        "['queued']",
    ]


def test_a_task_that_is_not_there_is_named(code: Type) -> None:
    ran = code(AIRFLOW, *shlex.split(clear_task_line("lake", RUN_ID, "order"))[1:])
    assert ran.status == 2
    assert f"no task order of DAG lake, run {RUN_ID}" in ran.err


def test_the_command_takes_what_its_help_says(tmp_path: Path) -> None:
    ran = typed("clear-task", "--help")
    assert (ran.status, "--map-index" in ran.out) == (0, True)
