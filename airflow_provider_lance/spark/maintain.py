"""The spark-submit application that maintains one dataset: compaction tasks run on executors.

    spark-submit --py-files airflow_provider_lance.zip maintain.py /private/spec.json
        [--remove] [--report PATH]

Everything else, including the commits, runs on the driver. The specification is a file, never an
argument, because it may hold the store's secrets. In cluster mode pass it with ``--files`` and name
it without its folder. ``--remove`` deletes it once read. The report is one line of JSON on stdout
and, with ``--report``, a local file. For an error it is ``{"error": class name, "message": …}``.
Exit status: 0 done, 1 failed, 2 the specification cannot be read.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.options import MaintenanceSpec
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.application import read_spec, start_logging
from airflow_provider_lance.spark.compaction import ExecuteOnExecutors
from airflow_provider_lance.spark.failures import message_of

__all__ = ["main", "run"]

log = logging.getLogger("airflow_provider_lance.spark.maintain")


def main(argv: list[str]) -> int:
    """Run the application; see the module's docstring for arguments and exit status.

    :raises SystemExit: with status 2, for invalid arguments.
    """
    arguments = _arguments(argv)
    start_logging()
    session = SparkSession.builder.getOrCreate()
    try:
        spec = MaintenanceSpec.loads(read_spec(arguments.spec, remove=arguments.remove))
    except (LanceStreamError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status, document = 2, _error_json(error)
    else:
        status, document = run(session, spec)
    if arguments.report:
        _write_whole(arguments.report, json.dumps(document))
    print(json.dumps(document))
    session.stop()
    return status


def run(session: SparkSession, spec: MaintenanceSpec) -> tuple[int, dict[str, Any]]:
    """Maintain one dataset; return the exit status and the report, or the error. Never raises."""
    try:
        report = maintain(
            open_dataset(spec.uri, spec.storage_options),
            spec.options,
            spec.storage_options,
            execute=ExecuteOnExecutors(session, spec.storage_options),
            on_progress=_log_progress,
        )
    except Exception as error:
        # An error of this package is complete; for any other, the trace may be the only
        # information.
        trace = None if isinstance(error, LanceStreamError) else error
        log.error("Failed. %s: %s", type(error).__name__, message_of(error), exc_info=trace)
        return 1, _error_json(error)
    return 0, report.to_json()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="maintain.py", allow_abbrev=False)
    parser.add_argument("spec", metavar="SPEC.json")
    parser.add_argument("--remove", action="store_true")
    parser.add_argument("--report", type=Path, metavar="PATH")
    return parser.parse_args(argv)


def _log_progress(done: int, tasks: int) -> None:
    log.info("Compacting. task=%d of %d", done, tasks)


def _error_json(error: BaseException) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": message_of(error)}


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically: no reader sees a part of it."""
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(text, encoding="utf-8")
    os.replace(hidden, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
