"""Identify one process exactly, even if a later one gets the same pid.

Linux records when a process started. On other systems nothing here is certain, and nothing is
killed.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_lance.protocol.decoding import Reader, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import Driver

__all__ = ["ProcessIdentity"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity(JsonRecord):
    """One process of one boot of one host; opaque, stored unchanged.

    ``start`` is ``<boot>:<start ticks>``, empty where the system does not say. ``<boot>`` is the
    boot's id, ``/`` and the pid namespace: containers of one host may share host name and boot, and
    yet use the same pid for different processes.
    """

    host: str
    pid: int
    start: str

    json_name = "a process"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "pid": partial(whole, most=2**31 - 1)
    }  # a larger one does not fit a C int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Identify a process of this host; one that has ended but is not yet reaped counts.

        :raises ProcessLookupError: no process has this pid.
        """
        with suppress(PermissionError):
            os.kill(pid, 0)
        seen = _look(pid)
        start = f"{_boot()}:{seen[1]}" if seen else ""
        return cls(socket.gethostname(), pid, start)

    @classmethod
    def recorded(cls, driver: Driver) -> ProcessIdentity:
        """Return the process that an owner record names."""
        return cls(driver.host, driver.pid, driver.start)

    @classmethod
    def reported(cls, document: Mapping[str, Any]) -> ProcessIdentity | None:
        """Return the process that a heartbeat names, ``None`` if it names none."""
        driver = document.get("driver")
        try:
            return cls.read_json(driver) if isinstance(driver, Mapping) else None
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def here(self) -> bool:
        """Return whether the process belongs to this host, boot and container."""
        return self.host == socket.gethostname() and self._boot == _boot() != ""

    def alive(self) -> bool | None:
        """Return whether the process runs; ``None`` if that is not visible from here.

        A zombie has ended. So has every process of an earlier boot of this host.
        """
        if not self.start or self.host != socket.gethostname():
            return None
        if not self.here:
            same_boot = self._boot.split("/")[0] == _boot().split("/")[0]
            return None if same_boot or not _boot() else False
        seen = _look(self.pid)
        if seen is None:
            # /proc may hide the processes of other users (its option hidepid).
            return None if _exists(self.pid) else False
        state, ticks = seen
        return state not in "ZX" and self.start == f"{self._boot}:{ticks}"

    def suspended(self) -> bool:
        """Return whether a signal such as SIGSTOP has stopped the process, as far as visible."""
        seen = _look(self.pid) if self.alive() else None
        return seen is not None and seen[0] in "Tt"

    def kill(self) -> bool:
        """Kill the process, with its process group if it leads one; return whether it was killed.

        Does nothing unless the process is alive and here. A process that leads no group shares it
        with others, such as the shell that started it; those are spared.
        """
        if not self.alive():
            return False
        killed = False
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
                killed = True
        return self._send(signal.SIGKILL) or killed

    def terminate(self) -> bool:
        """Send SIGTERM to this process only; return whether it was delivered."""
        return self._send(signal.SIGTERM)

    @property
    def _boot(self) -> str:
        return self.start.rpartition(":")[0]

    def _send(self, number: signal.Signals) -> bool:
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _boot() -> str:
    """Return the name of this boot and pid namespace; empty without Linux's /proc."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')[5:-1]}"  # pid:[4026531836]
    except OSError:
        return ""


def _look(pid: int) -> tuple[str, str] | None:
    """Return a process's state and the clock tick of its start; ``None`` if it is not visible.

    They are fields 3 and 22 of proc(5)'s stat; field 2, the name, may hold any characters.
    """
    try:
        content = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = content.rpartition(b")")[2].decode().split()
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
