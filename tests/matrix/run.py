"""What one combination of versions must do; run by an interpreter that holds it, installed.

It needs nothing of this repository but the DAGs beside it: the package is the installed one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path

DAGS = Path(__file__).parent / "dags"
RUN = datetime(2026, 1, 1, tzinfo=UTC)
"""The logical date of every run."""
TEST = f"""
from datetime import datetime
from functools import partialmethod
from airflow.__main__ import main
from airflow.sdk import DAG
DAG.test = partialmethod(DAG.test, run_after=datetime.fromisoformat('{RUN.isoformat()}'))
main()
"""
"""`airflow`, whose `dags test` names a run after ``RUN`` and not after the time of day: a second
process then runs the first one's task again, not another task of another run."""
FOUND = "Found the driver again"
PATIENCE_SECONDS = 900


def import_all() -> str:
    """Import every module of the installed package; return how many there are."""
    import airflow_provider_lance as package

    assert Path(sys.prefix) in Path(package.__file__).parents, package.__file__
    names = [
        module.name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith(".__main__") and ".example_dags" not in module.name
    ]
    for name in names:
        importlib.import_module(name)
    [point] = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module="airflow_provider_lance.provider_info"
    )
    assert point.load()()["package-name"] == "airflow-provider-lance"
    return f"{len(names)} modules"


def land(folder: Path, files: int) -> None:
    """Put files of ten rows where a stream looks for them."""
    folder.mkdir(parents=True)
    for number in range(files):
        rows = [
            {"id": each, "amount": each / 2, "at": "2026-01-01T00:00:00Z"}
            for each in range(10 * number, 10 * number + 10)
        ]
        (folder / f"{number:03}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def in_its_own_process(dag_id: str) -> subprocess.Popen[str]:
    """Run a DAG to its end with Airflow's own command, as its documentation does."""
    return subprocess.Popen(
        [sys.executable, "-c", TEST, "dags", "test", dag_id, RUN.isoformat()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, until: Callable[[str], None] = lambda _: None) -> str:
    """Wait for a DAG run to succeed, and call ``until`` with each line; return all it printed."""
    too_long = threading.Timer(PATIENCE_SECONDS, process.kill)
    too_long.start()
    lines = []
    assert process.stdout
    for line in process.stdout:
        lines.append(line)
        until(line)
    too_long.cancel()
    output = "".join(lines)
    assert process.wait() == 0, output[-8000:]
    assert "state=success" in output or "success" in lines[-1], output[-8000:]
    return output


def way(output: str) -> str:
    """Return whether a trigger of a DAG run ran."""
    return "deferred" if "running trigger in line" in output else "watched by the task"


def prove(folder: Path, name: str, files: int) -> None:
    """Every row must be there once, one epoch a file, and times must be what they were."""
    import lance

    dataset = lance.dataset(str(folder / f"{name}.lance"))
    table = dataset.to_table()
    assert Counter(table["id"].to_pylist()) == Counter(range(10 * files)), table.num_rows
    assert len(dataset.get_fragments()) == files
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]", table.schema
    assert set(table["at"].to_pylist()) == {RUN}


def bounded(folder: Path) -> str:
    land(folder / "bounded", 3)
    assert way(finish(in_its_own_process("matrix_bounded"))) == "watched by the task"
    prove(folder, "bounded", 3)
    return "30 rows in 3 epochs"


def deferred(folder: Path) -> str:
    land(folder / "deferred", 3)
    assert way(finish(in_its_own_process("matrix_deferred"))) == "deferred"
    prove(folder, "deferred", 3)
    return "30 rows in 3 epochs, then the sensor"


def killed(folder: Path) -> str:
    """Kill a task's process in mid-stream and run the task again: it must find the driver.

    The driver is paused from before the kill until it is found, so that it cannot end before.
    """
    files = 40
    land(folder / "killed", files)
    first = in_its_own_process("matrix_killed")

    def has_an_epoch() -> bool:
        assert first.poll() is None, first.communicate()[0][-8000:]
        return rows_of(folder / "killed.lance") > 0

    wait_for(has_an_epoch)
    launches = Path(os.environ["AIRFLOW_HOME"], "lance-streams", "killed")
    [launch] = launches.iterdir()
    driver = json.loads((launch / "driver.json").read_text())["driver"]["pid"]
    os.kill(driver, signal.SIGSTOP)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    rows = rows_of(folder / "killed.lance")
    assert rows < 10 * files, "the stream ended before its task's process"

    def go_on(line: str) -> None:
        if FOUND in line:
            os.kill(driver, signal.SIGCONT)

    try:
        output = finish(in_its_own_process("matrix_killed"), until=go_on)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGCONT)
    assert FOUND in output, output[-8000:]
    prove(folder, "killed", files)
    assert [*launches.iterdir()] == [launch]
    return f"{10 * files} rows, once each, by one driver, found again at row {rows}"


def rows_of(uri: Path) -> int:
    import lance

    try:
        return int(lance.dataset(str(uri)).count_rows())
    except ValueError:
        return 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def main() -> int:
    """Run all checks; print one line of JSON for each."""
    folder = Path(os.environ["MATRIX_FOLDER"])
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
    failed = 0
    for check in (lambda _: import_all(), bounded, deferred, killed):
        name, began = check.__name__.replace("<lambda>", "imports"), time.monotonic()
        try:
            said, fine = check(folder), True
        except Exception as error:
            said, fine, failed = f"{type(error).__name__}: {error}", False, failed + 1
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"check": name, "ok": fine, "seconds": seconds, "said": said}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
