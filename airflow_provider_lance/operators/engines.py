"""Where a maintenance run executes: in this worker, or as a Spark job."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_lance import shipping
from airflow_provider_lance.backends.cluster_managers import driver_name
from airflow_provider_lance.backends.environment import inherit_no_more
from airflow_provider_lance.backends.submission import Submission
from airflow_provider_lance.backends.submit import (
    close_output,
    driver_root,
    no_spark_submit,
)
from airflow_provider_lance.compat import (
    AirflowException,
    redirect_submit_output,
    submit_process,
)
from airflow_provider_lance.drivers.rotating_log import end_of_log
from airflow_provider_lance.drivers.run_directory import RunDirectory, forget_old_launches
from airflow_provider_lance.exceptions import SpecError, TransientError, error_class
from airflow_provider_lance.maintenance.dataset_metrics import DatasetMetrics, measure
from airflow_provider_lance.maintenance.options import MaintenanceSpec
from airflow_provider_lance.maintenance.run import Report, maintain
from airflow_provider_lance.operators.job_output import JobOutput, Progress
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decoding import json_object
from airflow_provider_lance.supervision.driver_log import is_certain, last_error
from airflow_provider_lance.supervision.driver_reports import new_launch_id

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.types import Logger

__all__ = ["LocalEngine", "SparkEngine"]

_ENDED = "The task was ended; what it had committed stays."


class LocalEngine:
    """Runs everything in this process; Lance uses every core."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._killed = threading.Event()
        self._progress = Progress()

    def run(self, spec: MaintenanceSpec) -> dict[str, Any]:
        """Run to the end and return the report."""
        port = open_dataset(spec.uri, spec.storage_options)
        report = maintain(port, spec.options, spec.storage_options, on_progress=self._show_progress)
        return report.to_json()

    def kill(self) -> None:
        """Start no further task."""
        self._killed.set()

    def _show_progress(self, done: int, tasks: int) -> None:
        if self._killed.is_set():
            raise AirflowException(_ENDED)
        if self._progress.shows(done, tasks):
            self._log.info("Compacting. task=%d of %d", done, tasks)


class SparkEngine:
    """Submits a job whose executors run the compaction tasks; waits for its end.

    Its output goes into a file below ``[lance] driver_folder``; the log gets progress and warnings.
    """

    def __init__(self, log: Logger, submission: Submission) -> None:
        self._log, self._submission = log, submission
        self._hook: SparkSubmitHook | None = None
        self._killed = False
        self._output_file = Path()

    def run(self, spec: MaintenanceSpec) -> dict[str, Any]:
        """Submit the job, wait, and return its report.

        A driver in the cluster returns no report: then ``before`` and ``after`` are this worker's
        own figures, and ``done`` has only ``spark``.

        :raises LanceStreamError: the error that ended the job, as its own class.
        :raises SpecError: it cannot be submitted with these arguments.
        :raises TransientError: the job ended without a report, and its output names no certain
            error.
        """
        if self._submission.is_cluster:
            return self._run_elsewhere(spec)
        with TemporaryDirectory(prefix="lance-optimize-") as name:
            report_file = Path(name, "report.json")
            failure = self._submit(spec, Path(name), "--report", str(report_file))
            try:
                report = json_object(report_file.read_bytes())
            except (FileNotFoundError, ValueError):
                self._raise_silence(failure)
        if "error" in report:
            raise _known(report)
        return report

    def kill(self) -> None:
        """Kill the job, wherever it runs."""
        self._killed = True
        if self._hook is None:
            return
        try:
            self._hook.on_kill()
        finally:
            process = submit_process(self._hook)
            # The JVM's child, the driver, would keep running, and holds the pipe that is read here.
            if process and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _submit(self, spec: MaintenanceSpec, folder: Path, *options: str) -> str | None:
        """Submit and wait; return the hook's message for a job that failed."""
        spec_file = folder / "spec.json"
        hook = self._submission.hook(
            spec_file, shipping.build_zip(folder), options=options, attached=True
        )
        inherit_no_more(hook, self._submission.connection)
        _write_private(spec_file, spec.dumps())
        self._hook = hook
        if self._killed:
            raise AirflowException(_ENDED)
        output = self._open_output()
        redirect_submit_output(hook, output.take)
        try:
            # The task's own stdin is its connection to Airflow: no child may hold it.
            hook.submit(
                str(shipping.application_path("maintain")),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except FileNotFoundError as error:
            raise no_spark_submit(error, self._submission) from error
        except AirflowException as error:
            return str(error).partition("\n")[0]
        finally:
            close_output(hook)
            output.close()
        return None

    def _open_output(self) -> JobOutput:
        root = driver_root()
        forget_old_launches(root, self._submission.name)
        folder = RunDirectory(root, self._submission.name, new_launch_id())
        folder.make()
        self._output_file = folder.driver_log
        self._log.info("Submitting. All output of the job is in %s", self._output_file)
        return JobOutput(self._log, self._output_file)

    def _run_elsewhere(self, spec: MaintenanceSpec) -> dict[str, Any]:
        if spec.options.dry_run:
            raise SpecError(
                "dry_run shows nothing with a driver in the cluster, which returns no report. Use "
                "engine='local', or a Spark connection in client mode"
            )
        began = time.monotonic()
        before = _measure(spec)
        with TemporaryDirectory(prefix="lance-optimize-") as name:
            if failure := self._submit(spec, Path(name)):
                self._raise_silence(failure)
        report = Report(
            spec.uri, before, _measure(spec), seconds=round(time.monotonic() - began, 3)
        )
        if report.before == report.after:
            report.skipped["spark"] = "the job succeeded and did not change the dataset"
        else:
            report.done["spark"] = {
                "steps": [step.value for step in spec.options.steps],
                "driver": self._driver(),
                "note": "the driver's log says what each step did; before and after are measured "
                "by this worker and include what writers changed",
            }
        return report.to_json()

    def _driver(self) -> str:
        """Return the cluster's name for the driver, empty if spark-submit did not print it."""
        return driver_name(self._hook)

    def _raise_silence(self, failure: str | None) -> NoReturn:
        if self._killed:
            raise AirflowException(_ENDED)
        last = last_error(end_of_log(self._output_file))
        said = (
            f"the Spark job ended and left no report: {failure or 'exit status 0'}. "
            f"{f'Its last error: {last.message}. ' if last else ''}Its output is in "
            f"{self._output_file}, or in the cluster's log of its driver. What it had committed "
            "stays"
        )
        if last and is_certain(last.error):
            raise error_class(last.error)(said)
        raise TransientError(f"{said}; run it again")


def _measure(spec: MaintenanceSpec) -> DatasetMetrics:
    port = open_dataset(spec.uri, spec.storage_options)
    return measure(port, spec.options.target_rows(port.config), spec.storage_options)


def _known(report: Mapping[str, Any]) -> Exception:
    """Return the error that a job left instead of its report."""
    known = error_class(str(report["error"]))
    name = "" if known.__name__ == report["error"] else f"{report['error']}: "
    return known(f"{name}{report.get('message')}")


def _write_private(path: Path, text: str) -> None:
    """Create a file, private from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
