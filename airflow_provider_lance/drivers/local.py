"""Start a driver on this host through its driver wrapper, and find it again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EAGAIN, EMFILE, ENFILE, ENOENT, ENOMEM
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_lance.drivers.launch_request import LaunchRequest, StopSettings
from airflow_provider_lance.drivers.rotating_log import last_lines
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["LocalDriver", "StopSettings", "find", "launch"]

_KEEPER = "airflow_provider_lance.drivers.driver_wrapper"
_LOOK_SECONDS = 0.05
_SHORT = (EAGAIN, EMFILE, ENFILE, ENOMEM)


@dataclass(frozen=True, slots=True)
class LocalDriver(JsonRecord):
    """A driver that was started on some host: its folder there, its process and its wrapper's."""

    folder: str
    driver: ProcessIdentity
    keeper: ProcessIdentity

    kind: ClassVar[str] = "process"
    polls_remotely: ClassVar[bool] = False

    json_name = "a driver on a host"

    @property
    def is_here(self) -> bool:
        """Return whether it was started on this host, since its last boot."""
        return self.driver.here

    def alive(self) -> bool | None:
        """Return whether the driver runs; ``None`` if that is not visible from here."""
        return self.driver.alive()

    def kill(self) -> bool:
        """Kill the driver and its process group; return whether anything was killed."""
        return self.driver.kill()

    def stop(self, by: str) -> bool:
        """Make the driver wrapper stop the driver in order; ``False`` if it is not on this host.

        :param by: who asks, for the driver's summary.
        """
        if not self.keeper.alive():
            return False
        try:
            RunDirectory.at(self.folder).write_stop(by)
        except OSError:  # unsigned, it would count as a shutdown of the host
            return False
        return self.keeper.terminate()

    def exit_status(self) -> int | None:
        """Return the driver's exit status, negative for a signal; ``None`` if it was not noted."""
        document = RunDirectory.at(self.folder).read_exit()
        return document["status"] if document else None

    def end_note(self) -> str:
        """Return nothing: its log and exit status are here."""
        return ""

    def is_ending(self) -> bool:
        """Return whether the driver has exited and its wrapper has yet to note the exit status."""
        return self.exit_status() is None and self.keeper.alive() is True

    def log(self) -> Path | None:
        """Return the path of the driver's log, ``None`` if it is on another host."""
        return RunDirectory.at(self.folder).driver_log if self.is_here else None

    def where(self) -> str:
        """Return its place as text."""
        return f"pid {self.driver.pid} on {self.driver.host}, log in {self.folder}"


def launch(
    folder: RunDirectory,
    *,
    command: Sequence[str],
    environment: Mapping[str, str],
    redact: Sequence[str],
    grace: float,
    stop: StopSettings | None,
    seconds: float = 30,
) -> LocalDriver:
    """Start a driver that outlives this process, and return once it runs.

    On any error nothing remains running, and the specification is removed from the folder.

    :param environment: the driver's whole environment; its ``PATH`` finds the command. The driver
        wrapper gets this process's own values of the same names.
    :param redact: every secret that the driver or Lance might print, those of ``stop`` included.
        Secrets shorter than 4 characters are ignored.
    :param grace: seconds between the stop request and the kill.
    :param stop: how to ask; with ``None``, the wrapper waits for ``grace`` seconds and kills.
    :param seconds: how long to wait for the driver to start.
    :raises FileNotFoundError: the command is not on the ``PATH``; ``filename`` names it.
    :raises SpecError: the command cannot be run, or this user may not write to the folder.
    :raises StorageUnavailableError: there is no space for the folder.
    :raises TransientError: it could not be started in time, or this host is short of processes.
    """
    folder.make()
    if folder.read_driver() is not None:
        raise SpecError(
            f"{folder.path} has already started a driver; make a new launch id for each launch"
        )
    order = LaunchRequest(command, environment, redact, grace, stop)
    try:
        deadline = time.monotonic() + seconds
        _start_keeper(folder, order, seconds)
        return _driver(_started(folder, deadline, seconds), folder)
    except BaseException:
        _give_up(folder)
        raise


def find(root: Path, query_id: str, launch_id: str) -> LocalDriver | None:
    """Return the driver that a launch below this root started; ``None`` if it started none.

    After ``None`` the launch cannot start one any more: a late wrapper sees that it was given up.
    """
    folder = RunDirectory(root, query_id, launch_id)
    document = folder.read_driver()
    if document is None and folder.path.is_dir():
        _give_up(folder)
        document = folder.read_driver()
    return _driver(document, folder) if document and "driver" in document else None


def _start_keeper(folder: RunDirectory, order: LaunchRequest, seconds: float) -> None:
    # -P: files in the worker's current folder must not replace a module.
    argv = [sys.executable, "-P", "-m", _KEEPER, str(folder.path.absolute())]
    with (
        folder.open_keeper_log() as log,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_own(order.environment)
        ) as keeper,
    ):
        try:
            # It ends at once: the process that continues is a grandchild in its own session.
            keeper.communicate(order.dumps().encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            keeper.kill()
            raise _late(folder, seconds) from None
        except BaseException:
            keeper.kill()
            raise
    if keeper.returncode != 0:
        raise TransientError(
            f"the keeper in {folder.path} ended with status {keeper.returncode} before it had "
            f"started the driver. {_said(folder)}"
        )


def _own(names: Iterable[str]) -> dict[str, str]:
    """Return this process's own values of these variables."""
    return {name: os.environ[name] for name in names if name in os.environ}


def _started(folder: RunDirectory, deadline: float, seconds: float) -> Mapping[str, Any]:
    while (document := folder.read_driver()) is None:
        if time.monotonic() > deadline:
            raise _late(folder, seconds)
        time.sleep(_LOOK_SECONDS)
    return document


def _late(folder: RunDirectory, seconds: float) -> TransientError:
    return TransientError(
        f"the keeper in {folder.path} did not start the driver within {seconds:g} s; is this host "
        f"overloaded? {_said(folder)}"
    )


def _said(folder: RunDirectory) -> str:
    lines = last_lines(folder.keeper_log, 20)
    return "Its log:\n" + "\n".join(lines) if lines else "Its log is empty."


def _driver(document: Mapping[str, Any], folder: RunDirectory) -> LocalDriver:
    if "driver" in document:
        return LocalDriver.from_json({**document, "folder": str(folder.path.absolute())})
    if missing := document.get("missing"):
        raise FileNotFoundError(ENOENT, "is not on the PATH of the driver", str(missing))
    said = f"the driver could not be started: {document.get('error')} (see {folder.path})"
    if document.get("errno") in _SHORT:
        raise TransientError(f"{said}. This host is short of memory or processes for now")
    raise SpecError(f"{said}. Correct the command or its environment")


def _give_up(folder: RunDirectory) -> None:
    """Leave no untracked process running, and no secret.

    The first to write ``driver.json`` decides: a wrapper that is late kills its own driver.
    """
    folder.remove_spec()
    with suppress(OSError):
        if folder.publish({"error": "the launch was given up"}):
            return
    document = folder.read_driver() or {}
    if "driver" in document:
        with suppress(ValueError):
            ProcessIdentity.read_json(document["driver"]).kill()
