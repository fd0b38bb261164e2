"""The driver wrapper: starts one driver, writes its log, records its exit, and stops it in order.

Run as ``python -m airflow_provider_lance.drivers.driver_wrapper <folder>`` with its launch request
on stdin. It continues in its own session; the process that was run ends at once. The driver does
not depend on it: if the wrapper is killed, only the end of the log is lost.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread

from airflow_provider_lance.drivers.launch_request import HOST_SHUTDOWN, LaunchRequest, StopSettings
from airflow_provider_lance.drivers.rotating_log import Redactor, RotatingLog, pump
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["DriverWrapper", "main"]

log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_LINGER_SECONDS = 5.0
"""How long the processes that a driver leaves, such as the Python child of a killed JVM, may run
on.
"""


class DriverWrapper:
    """Runs one driver from its start to its end."""

    def __init__(self, folder: RunDirectory, order: LaunchRequest, redactor: Redactor) -> None:
        self._folder, self._order, self._redactor = folder, order, redactor
        self._ended = Event()
        self._asked_to_stop = False
        self._wake, wakes = os.pipe()
        for end in (self._wake, wakes):
            os.set_blocking(end, False)
        # Signals only wake the loop below: a handler that did more could interrupt itself.
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def run(self) -> None:
        """Start the driver, and return once it has ended."""
        if self._folder.read_driver() is not None:
            log.warning("Started nothing: the launch was given up or is another keeper's.")
            return
        process = self._start()
        if process is None:
            return
        driver = ProcessIdentity.of(process.pid)  # not reaped yet, so no other process has its pid
        if not self._publish(driver):
            driver.kill()
            process.wait()
            return
        log.info("Started. pid=%d", process.pid)
        assert process.stdout
        to_log = (process.stdout.fileno(), RotatingLog(self._folder.driver_log), self._redactor)
        pumping = Thread(target=pump, args=to_log, daemon=True)
        pumping.start()
        self._watch(driver)
        self._ended.set()
        # Its process group is its own until it is reaped, so the processes left in it are known.
        pumping.join(_LINGER_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        pumping.join(1.0)
        self._note_end(process.wait())

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._asked_to_stop = True

    def _start(self) -> subprocess.Popen[bytes] | None:
        order = self._order
        try:
            return subprocess.Popen(
                list(order.command),
                env=dict(order.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # SIGPIPE stays ignored; otherwise the driver would die at its next line after the
                # wrapper was killed.
                restore_signals=False,
            )
        except (OSError, ValueError) as error:
            log.error("Could not start the driver: %s", error)
            number = getattr(error, "errno", None)
            missing = getattr(error, "filename", None) if number == errno.ENOENT else None
            said = self._redactor.text(str(error))
            self._folder.publish({"error": said, "errno": number, "missing": missing})
            return None

    def _publish(self, driver: ProcessIdentity) -> bool:
        """Publish that the driver runs; ``False`` if the launch was given up meanwhile."""
        keeper = ProcessIdentity.of(os.getpid())
        try:
            published = self._folder.publish(
                {"driver": driver.to_json(), "keeper": keeper.to_json()}
            )
        except OSError as error:
            log.error("Killed the driver: cannot publish that it runs: %s", error)
            return False
        if not published:
            log.warning("Killed the driver: its launch was given up meanwhile.")
        return published

    def _watch(self, driver: ProcessIdentity) -> None:
        """Return when the driver has ended; stop it when requested."""
        stopping = False
        deadline: float | None = None
        while not _has_ended(driver.pid):
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            select.select([self._wake], [], [], wait)
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            if self._asked_to_stop and not stopping:
                stopping = True
                deadline = time.monotonic() + self._order.grace
                log.info("Stopping. grace=%gs", self._order.grace)
                if self._order.stop:
                    # An unsigned stop is a host shutdown: the supervising task then launches a new
                    # driver.
                    by = self._folder.read_stop() or f"{HOST_SHUTDOWN} {socket.gethostname()}"
                    order = replace(self._order.stop, by=by)
                    Thread(target=self._ask, args=(order, deadline), daemon=True).start()
            elif deadline is not None and time.monotonic() >= deadline:
                log.warning(
                    "Still running after %g s: killed. pid=%d", self._order.grace, driver.pid
                )
                driver.kill()
                deadline = None

    def _ask(self, stop: StopSettings, deadline: float) -> None:
        """Ask through the dataset, repeatedly.

        A driver that has not claimed yet ignores a request that it finds at its start.
        """
        said = ""
        while not self._ended.is_set() and time.monotonic() < deadline:
            try:
                answer = _request(stop)
            except BaseException as error:  # a panic in Lance is not an Exception
                answer = f"{type(error).__name__}: {error}"
            if answer != said:
                log.info("Asking query %s to stop: %s", stop.query_id, answer)
                said = answer
            self._ended.wait(_ASK_SECONDS)

    def _note_end(self, status: int) -> None:
        log.info("Ended. status=%d", status)
        self._folder.remove_spec()
        try:
            self._folder.write_exit(status)
        except OSError as error:
            log.error("Cannot record the driver's end: %s", error)


def _request(stop: StopSettings) -> str:
    from airflow_provider_lance.protocol.dataset import open_dataset
    from airflow_provider_lance.protocol.stop_requests import request_stop

    port = open_dataset(stop.uri, stop.storage_options)
    token = request_stop(port, stop.query_id, by=stop.by, launch_id=stop.launch_id)
    return "not this launch's for now" if token is None else f"asked, token={token}"


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; do not reap it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _detach(folder: RunDirectory) -> None:
    """Continue as a detached process; a waiting caller sees the end at once."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with folder.open_keeper_log() as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)


class _WithoutSecrets(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


def main() -> None:
    """Read the launch request, detach, and run the driver."""
    folder = RunDirectory.at(sys.argv[1])
    order = LaunchRequest.loads(sys.stdin.buffer.read())
    redactor = Redactor(order.redact)
    _detach(folder)
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutSecrets(redactor))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        DriverWrapper(folder, order, redactor).run()
    except BaseException:
        log.exception("The keeper failed.")
    # Exit at once: a thread may still be waiting for a store that does not answer.
    os._exit(0)


if __name__ == "__main__":
    main()
