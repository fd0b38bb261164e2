"""One driver's life, from outside: started, watched, killed, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_provider_lance.exceptions import (
    FencedError,
    LanceStreamError,
    TerminalError,
    TransientError,
    error_class,
)
from tests.chaos.birth import give_birth
from tests.chaos.orders import Orders
from tests.chaos.plan import Whom

SIGN = "CHAOS_SIGN"
"""The variable that tells the interposer which driver it is in."""

LONGEST_SECONDS = 150.0
"""A life that lasts longer hangs. Drivers here have seconds of work."""


class Manner(StrEnum):
    """How a life ended."""

    KILLED = "killed"
    FINISHED = "finished"
    """All was read, or it was asked to stop: in order."""
    FENCED = "fenced"
    REFUSED = "refused"
    """By a named error that no retry mends."""
    GAVE_UP = "gave up"
    """By a named error that may pass: the store failed too often."""
    UNNAMED = "unnamed"
    """By any other error, or without a word."""
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class End:
    """How a life ended, and what it said; ``error`` is the error's name.

    ``doubts`` counts its commits whose outcome it did not know at first.
    """

    manner: Manner
    error: str = ""
    message: str = ""
    doubts: int = 0


def kill(python: int, jvm: int, whom: Whom) -> None:
    """Kill what is meant of a driver: all of its process group, or one of its two processes."""
    match whom:
        case Whom.ALL:
            os.killpg(python, signal.SIGKILL)
        case Whom.PYTHON:
            os.kill(python, signal.SIGKILL)
        case Whom.JVM:
            os.kill(jvm, signal.SIGKILL)


class Life:
    """One driver process; it has a session of its own, which ends with it."""

    def __init__(self, orders: Orders, environment: dict[str, str], interposer: str = "") -> None:
        self.sign = orders.sign
        self._log = Path(f"{orders.sign}.log")
        self._pause, self._shot = orders.pause, False
        path = Path(f"{orders.sign}.orders.json")
        path.write_text(orders.dumps())
        environment = environment | {SIGN: orders.sign}
        self._process = give_birth(path, self._log, environment, interposer)
        self._born = time.monotonic()

    @property
    def pid(self) -> int:
        """Return the process's id, which is its process group's, too."""
        assert self._process.pid
        return self._process.pid

    @property
    def over(self) -> bool:
        """Tell whether the driver has ended."""
        return not self._process.is_alive()

    @property
    def too_long(self) -> bool:
        """Tell whether it has lived longer than any driver here should."""
        return time.monotonic() - self._born > LONGEST_SECONDS

    @property
    def ready(self) -> bool:
        """Tell whether Spark is there and the job begins."""
        return Path(f"{self.sign}.ready").exists()

    @property
    def struck(self) -> bool:
        """Tell whether it came to the point that its orders name."""
        return Path(f"{self.sign}.struck").exists()

    @property
    def killed(self) -> bool:
        """Tell whether it was killed, by itself or from outside."""
        return self._shot or (self.struck and not self._pause)

    @property
    def stopped(self) -> bool:
        """Tell whether the process stands still by a signal."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{self.pid}/stat").read_text()
            return status.rsplit(")", 1)[1].split()[0] == "T"
        return False

    @property
    def held(self) -> bool:
        """Tell whether a manifest of this driver's waits to be published."""
        return Path(f"{self.sign}.held").exists()

    def let_publish(self) -> None:
        """Let the manifest that waits be published."""
        Path(f"{self.sign}.go").touch()

    def suspend(self) -> None:
        """Stop all processes of the driver, as a machine that is suspended does."""
        os.killpg(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped driver go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self, whom: Whom) -> bool:
        """Kill it where it is; return whether it was alive."""
        if self.over:
            return False
        ready = Path(f"{self.sign}.ready")
        jvm = int(ready.read_text()) if ready.exists() else 0
        whom = whom if jvm else Whom.ALL
        with contextlib.suppress(ProcessLookupError):
            kill(self.pid, jvm, whom)
        self._shot = True
        return True

    def end(self) -> End:
        """Wait for the end, and tell how it was. Nothing of the driver is left after it."""
        while not self.over and not self.too_long:
            time.sleep(0.02)
        hung = not self.over
        self.clear()
        if hung:
            return End(Manner.HUNG, message=f"alive after {LONGEST_SECONDS:g} s; see {self._log}")
        output = self._log.read_text(errors="replace").splitlines()
        doubts = sum("Outcome unknown" in line for line in output)
        if self.killed:
            return End(Manner.KILLED, doubts=doubts)
        said = [line for line in output if line.startswith("SUMMARY ")]
        if not said:
            last = output[-1] if output else "nothing was said"
            return End(Manner.UNNAMED, message=f"status {self._process.exitcode}: {last}")
        summary: dict[str, Any] = json.loads(said[-1].removeprefix("SUMMARY "))
        error, message = summary.get("error") or "", summary.get("message") or ""
        return End(manner_of(error, message), error, message, doubts)

    def clear(self) -> None:
        """Kill what is left of the driver's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()

    def until_gone(self, seconds: float) -> None:
        """Wait until the whole process group has ended by itself, or the time after it is up."""
        self._process.join()  # before it has a session of its own there is no group, either
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


def manner_of(error: str, message: str) -> Manner:
    """Return what kind of end an error is; a message without an error is of an epoch that hung."""
    if not error:
        return Manner.HUNG if message else Manner.FINISHED
    kind = error_class(error)
    if kind is LanceStreamError:
        return Manner.UNNAMED
    if issubclass(kind, FencedError):
        return Manner.FENCED
    if issubclass(kind, TerminalError):
        return Manner.REFUSED
    assert issubclass(kind, TransientError)
    return Manner.GAVE_UP
