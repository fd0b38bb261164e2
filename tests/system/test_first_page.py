"""What the README's first page tells a newcomer to write and to type does what it says."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import lance
import pytest
from airflow.sdk import BaseOperator

from airflow_provider_lance.operators.stream import LanceStreamOperator
from tests.support.airflow import REPOSITORY, settings
from tests.support.processes import QUICK_JAVA, finish

MOST_LINES, MOST_ARGUMENTS, MOST_COMMANDS = 12, 5, 3
LAST = "airflow standalone"


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return language and text of each block of code in a section."""
    text = (REPOSITORY / "README.md").read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def smallest() -> tuple[str, str, list[str]]:
    """Return the smallest DAG, the same as a function, and the commands."""
    (_, dag), (_, commands), (_, function) = blocks("The smallest useful DAG")
    first, second, third = re.split(r"\n(?=mkdir |AIRFLOW__)", commands.strip())
    return dag, function, [first, second, third]


def test_the_smallest_dag_is_small() -> None:
    dag, _, commands = smallest()
    [call] = [
        node
        for node in ast.walk(ast.parse(dag))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "LanceStreamOperator"
    ]
    assert len(call.keywords) <= MOST_ARGUMENTS
    assert len([line for line in dag.splitlines() if line.strip()]) <= MOST_LINES
    assert len(commands) <= MOST_COMMANDS
    assert commands[0].startswith("pip install ")
    assert commands[2].endswith(LAST)


def test_the_long_running_stream_is_the_same_operator_with_arguments_that_it_has() -> None:
    [(_, snippet)] = blocks("A long-running stream")
    call = ast.parse(snippet).body[0].value  # type: ignore[attr-defined]
    named = {keyword.arg for keyword in call.keywords}
    airflows = set(signature(BaseOperator.__init__).parameters)
    assert named <= airflows | set(signature(LanceStreamOperator.__init__).parameters)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["operator", "function"])
def test_the_smallest_dag_streams(form: str, tmp_path: Path) -> None:
    """Airflow is run for one DAG run in place of all day."""
    dag, function, (_, land, start) = smallest()
    if form == "function":
        head, call = dag.partition("    LanceStreamOperator(")[0], "\n\norders()\n"
        imports, _, body = function.partition("\n\n\n")
        lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        dag = f"{imports}\n{head}{lines}{call}"
    lake = str(tmp_path / "lake")
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "orders.py").write_text(dag.replace("/tmp/lake", lake))
    once = shlex.join([sys.executable, "-m", "tests.system.run_dag", "orders", "{}", str(folder)])
    [(_, looks)] = blocks("Look at a stream")
    script = f"{land}\n{start.removesuffix(LAST)}{once}\n{looks}".replace("/tmp/lake", lake)
    environment = settings(tmp_path) | {
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore",
    }
    for name in ("AIRFLOW_CONN_LANCE_DEFAULT", "AIRFLOW_CONN_SPARK_DEFAULT"):
        environment.pop(name, None)
    typed = subprocess.Popen(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    status, output = finish(typed, seconds=500)
    assert status == 0, output[-6000:]
    assert "watermark 0" in output
    assert lance.dataset(f"{lake}/orders.lance").to_table().to_pylist() == [{"id": 1}]
    assert Path(lake, "checkpoints", "orders", "commits", "0").exists()
