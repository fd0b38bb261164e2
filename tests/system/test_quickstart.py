"""What the quickstart tells a newcomer to write and to type does what it says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.airflow import REPOSITORY, settings
from tests.support.processes import QUICK_JAVA, finish

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def block(step: int, place: Path) -> str:
    """Return the first block of code of a step, with a place of the test's own."""
    text = (REPOSITORY / "docs/quickstart.md").read_text()
    section = text.partition(f"\n## {step}. ")[2].partition("\n## ")[0]
    found = re.search(r"^```\w+\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found, step
    return found[1].replace("/tmp/orders", str(place))


def test_the_quickstart_streams_shows_its_epochs_and_refuses_a_deleted_checkpoint(
    tmp_path: Path,
) -> None:
    place = tmp_path / "orders"
    environment = settings(tmp_path) | {
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYTHONPATH": str(REPOSITORY),
    }

    def typed(script: str) -> tuple[int, str]:
        process = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return finish(process, seconds=400)

    status, output = typed(block(2, place))
    assert status == 0, output
    (place / "dags").mkdir()
    (place / "dags" / "orders.py").write_text(block(3, place))
    once = [sys.executable, "-m", "tests.system.run_dag", "orders", "{}", str(place / "dags")]
    run = f"{block(4, place)}\n{shlex.join(once)}"

    status, output = typed(run)
    assert status == 0, output[-6000:]
    assert "Stream finished. epochs=2 rows=2 watermark=1 version=5" in output

    status, output = typed(shlex.join([sys.executable, "-c", block(6, place)]))
    assert status == 0, output
    rows, *versions = output.splitlines()
    assert rows == "[{'id': 1, 'amount': 12.5}, {'id': 2, 'amount': 30.0}]"
    stamped = [line.split()[0] for line in versions if "streaming.epochId" in line]
    assert stamped == ["3", "4"]

    shutil.rmtree(place / "checkpoints" / "orders")
    status, output = typed(run)
    assert status == 1
    expected = f"CheckpointMismatchError: query 'orders' in {place}/orders.lance belongs to"
    assert expected in output, output[-6000:]
