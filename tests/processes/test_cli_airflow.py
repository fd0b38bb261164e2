"""``airflow lance``: the same commands by Airflow's own parser, and connections by their ids."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_provider_lance.cli.airflow import get_cli_commands
from airflow_provider_lance.cli.main import build_parser
from airflow_provider_lance.provider_info import get_provider_info
from tests.support.cli import QUERY, Stream, python, typed

from .conftest import SECRET, AddConnection

BUILDER = "airflow_provider_lance.cli.airflow.get_cli_commands"
RUN = "from airflow.__main__ import main; main()"


def airflow(*words: str) -> Any:
    return python("-c", RUN, *words, env={"AIRFLOW_HOME": os.environ["AIRFLOW_HOME"]})


def flags(parser: argparse.ArgumentParser) -> dict[str, set[str]]:
    """Return every command with what it takes, by what parses it."""
    found: dict[str, set[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, member in action.choices.items():
                found |= {f"{name} {inner}".strip(): each for inner, each in flags(member).items()}
        else:
            found.setdefault("", set()).update(action.option_strings or {action.dest})
    return {name: each for name, each in found.items() if name or len(found) == 1}


def airflows(command: ActionCommand | GroupCommand) -> dict[str, set[str]]:
    if isinstance(command, GroupCommand):
        return {
            f"{each.name} {inner}".strip(): taken
            for each in command.subcommands
            for inner, taken in airflows(each).items()
        }
    return {"": {flag for each in command.args for flag in each.flags} | {"-h", "--help"}}


def test_airflow_gets_the_same_commands() -> None:
    [group] = get_cli_commands()
    assert isinstance(group, GroupCommand)
    assert group.name == "lance"
    ours = flags(build_parser())
    assert airflows(group) == ours
    assert {"status", "resolve gap", "resolve checkpoint", "doctor"} <= ours.keys()


def test_the_builder_imports_next_to_nothing() -> None:
    """Every ``airflow`` command calls it."""
    code = """
import sys
import airflow.cli.cli_config
before = set(sys.modules)
from airflow_provider_lance.cli.airflow import get_cli_commands
get_cli_commands()
print(sorted(set(sys.modules) - before - {"airflow_provider_lance"}))
"""
    assert python("-c", code).out.splitlines()[-1] == str(
        [
            "airflow_provider_lance.cli",
            "airflow_provider_lance.cli.airflow",
            "airflow_provider_lance.cli.arguments",
            "airflow_provider_lance.cli.command_spec",
            "airflow_provider_lance.cli.commands",
            "airflow_provider_lance.cli.commands_metrics",
            "airflow_provider_lance.cli.commands_resolve",
        ]
    )


def test_airflow_runs_them(stream: Stream) -> None:
    ran = airflow("lance", "status", stream.uri, QUERY, "--output", "json")
    assert (ran.status, ran.document["watermark"]) == (0, 3)
    ran = airflow("lance", "resolve", "gap", stream.uri, "--epoch", "9", "--missing")
    assert ran.status == 1
    assert "no gap" in ran.err


def test_a_connection_is_found_by_its_id(stream: Stream, add_connection: AddConnection) -> None:
    add_connection(
        "lake",
        {"base_uri": str(stream.folder), "storage_options": {"session_token": SECRET}},
        conn_type="lance",
    )
    ran = typed("status", "orders.lance", "--conn-id", "lake", "-o", "json")
    assert ran.status == 0, ran.err
    assert ran.document["uri"] == stream.uri
    ran = typed("stop", "orders.lance", "--conn-id", "lake")
    assert f"lance-stream stop {stream.uri} orders --yes --conn-id lake" in ran.out
    ran = typed("doctor", "orders.lance", "--conn-id", "lake", "--debug")
    assert "'lake' leads to" in ran.out
    assert SECRET not in ran.out + ran.err


def test_a_connection_of_the_database_is_found_where_there_is_one(
    stream: Stream, tmp_path: Path
) -> None:
    """A task asks the API server for it; a person has only the database, as ``airflow`` does."""
    home = tmp_path / "airflow"
    environment = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    code = f"""
import sys
from airflow.utils.db import initdb
initdb()
from airflow.models.connection import Connection
from airflow.settings import Session
session = Session()
session.add(Connection(conn_id="lake", conn_type="lance", extra={{"base_uri": {str(tmp_path)!r}}}))
session.commit()
from airflow_provider_lance.cli.main import main
sys.stdout.flush()
print("--")
sys.exit(main(["status", "orders.lance", "--conn-id", "lake"]))
"""
    ran = python("-c", code, env=environment)
    assert ran.status == 0, ran.err
    assert "running: watermark 3" in ran.out.rpartition("--\n")[2]


def test_a_connection_that_is_not_there(add_connection: AddConnection) -> None:
    ran = typed("status", "orders.lance", "--conn-id", "nowhere")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert "airflow connections add nowhere" in ran.err
    ran = typed("status", "/x", "--conn-id", "nowhere", "--storage-option", "a=b")
    assert ran.status == 2
    assert ran.err.startswith("error: --conn-id ")


def test_the_provider_info_names_the_builder() -> None:
    assert get_provider_info()["cli"] == [BUILDER]
