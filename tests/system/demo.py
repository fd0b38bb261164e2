"""`make demo`: the example DAG in a real Airflow, its Spark driver killed once, the result proven.

Prints what happens while it happens, the epochs read back from the dataset's own history as a
table, and as its last line one JSON object. Exit status 0 only if every row is there exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import EpochStamp, OwnerState, QueryState
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.airflow import REPOSITORY, Airflow

DAG, QUERY, ROWS = "lance_flights", "flights", 336_776
KILL_AFTER_EPOCH = 7
PATIENCE_SECONDS = 600

# Wide enough for the table also where the output is no terminal.
console = Console(width=None if sys.stdout.isatty() else 120)


class Demo:
    """One run of the demo in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.data = home / "data"
        self.uri = str(self.data / "flights.lance")
        self.airflow = Airflow(home)

    def run(self) -> dict[str, Any]:
        """Run it; return what the last line shows."""
        console.print("Starting Airflow: API server, scheduler, DAG processor, triggerer …")
        began = time.monotonic()
        with self.airflow:
            run_id = self.airflow.trigger(DAG, {"folder": str(self.data)})
            console.print(f"DAG {DAG} started {time.monotonic() - began:.0f} s later.")
            triggered = time.monotonic()
            killed = self._follow(run_id)
            seconds = time.monotonic() - triggered
            tasks = self.airflow.tasks(DAG, run_id)
            state = self.airflow.run_state(DAG, run_id)
        console.print(
            f"DAG run {state}; task stream took {tasks['stream']['try_number']} tries, "
            f"its driver was killed after epoch {killed}."
        )
        if state != "success" or killed is None:
            failed = [name for name, task in tasks.items() if task["state"] == "failed"]
            raise SystemExit(f"demo: DAG run {state}, failed tasks: {failed}; see .airflow/demo")
        return self._prove(round(seconds, 1), int(tasks["stream"]["try_number"]))

    def _follow(self, run_id: str) -> int | None:
        """Show the epochs as they land; kill the driver once in mid-stream."""
        killed: int | None = None
        said = -1
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TextColumn("rows"), TimeElapsedColumn(), console=console) as bar:
            shown = bar.add_task("waiting for the driver", total=ROWS)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while self.airflow.run_state(DAG, run_id) not in ("success", "failed"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"demo: no end after {PATIENCE_SECONDS} s; see .airflow/demo")
                if state := self._look():
                    epoch, rows = self._progress()
                    bar.update(shown, completed=rows, description=f"epoch {epoch}")
                    if epoch > said and not console.is_terminal:
                        console.print(f"Epoch {epoch} has landed: {rows:,} rows in the dataset.")
                    said = max(said, epoch)
                    active = state.owner and state.owner.state is OwnerState.ACTIVE
                    if killed is None and active and epoch >= KILL_AFTER_EPOCH:
                        self._kill(state)
                        killed = epoch
                time.sleep(0.2)
            if self._look():
                bar.update(shown, completed=self._progress()[1], description="streamed")
        return killed

    def _progress(self) -> tuple[int, int]:
        """Return the newest epoch and the rows in the dataset."""
        port = open_dataset(self.uri)
        return exact_watermark(port, QUERY).epoch, port.dataset.count_rows()

    def _look(self) -> QueryState | None:
        with suppress(LanceStreamError):
            port = open_dataset(self.uri)
            state = decode_query(port.config, QUERY, port.version)
            return state if state.known else None
        return None

    def _kill(self, state: QueryState) -> None:
        """Kill the driver as a dying machine would: the Python process and its JVM at once."""
        assert state.owner is not None
        driver = state.owner.driver
        jvm = _parent(driver.pid)
        for pid in (driver.pid, jvm):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        console.print(
            f"[bold red]SIGKILL[/] to the Spark driver (pid {driver.pid}, JVM {jvm}), owner token "
            f"{state.owner.token}. Airflow's retry takes over …"
        )

    def _prove(self, seconds: float, tries: int) -> dict[str, Any]:
        port = open_dataset(self.uri)
        stamps = _stamps(port)
        console.print(_table(stamps))
        rows_in, source_ids = _source(self.data / "landing")
        ids = port.dataset.to_table(columns=["flight_id"]).column("flight_id").to_pylist()
        return {
            "rows_in": rows_in,
            "rows_out": len(ids),
            "duplicates": len(ids) - len(set(ids)),
            "missing": len(source_ids - set(ids)),
            "epochs": len(stamps),
            "fragments": len(port.dataset.get_fragments()),
            "manifest_updates": port.version - 1,
            "drivers": len({stamp.run_id for stamp in stamps}),
            "tries": tries,
            "seconds": seconds,
        }


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def _stamps(port: LanceDatasetPort) -> list[EpochStamp]:
    found = (
        decode_stamp(port.properties(version) or {}, QUERY, version)
        for version in range(1, port.version + 1)
    )
    return [stamp for stamp in found if stamp]


def _source(landing: Path) -> tuple[int, set[int]]:
    """Count the input independently of the stream, from the files themselves."""
    import pyarrow.parquet as pq

    ids = [
        flight_id
        for file in sorted(landing.glob("flights-*.parquet"))
        for flight_id in pq.read_table(file, columns=["flight_id"]).column(0).to_pylist()
    ]
    return len(ids), set(ids)


def _table(stamps: list[EpochStamp]) -> Table:
    table = Table(title=f"Epochs of query {QUERY!r}, read from the dataset's history")
    for name in ("epoch", "version", "token", "rows", "fragments", "KiB", "ms", "committed at"):
        table.add_column(name, justify="right")
    for stamp in stamps:
        table.add_row(
            str(stamp.epoch_id),
            str(stamp.version),
            str(stamp.token),
            f"{stamp.rows:,}",
            str(stamp.fragments),
            f"{stamp.bytes / 1024:,.0f}",
            str(stamp.duration_ms),
            stamp.committed_at[11:23],
        )
    return table


def main() -> int:
    home = REPOSITORY / ".airflow" / "demo"
    shutil.rmtree(home, ignore_errors=True)
    result = Demo(home).run()
    print(json.dumps(result), flush=True)
    exact = result["rows_in"] == result["rows_out"] == ROWS
    return 0 if exact and not result["duplicates"] and not result["missing"] else 1


if __name__ == "__main__":
    sys.exit(main())
