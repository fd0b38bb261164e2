"""Which process, exactly: told apart from a later one that was given the same pid.

Linux says when a process started; elsewhere nothing here is sure, and nothing is killed.
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
from typing import ClassVar

from airflow_provider_lance.protocol.decoding import Reader, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["ProcessIdentity"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity(JsonRecord):
    """One process of one boot of one host; opaque, kept as it is.

    ``start`` is ``<boot>:<start ticks>``, empty where the system does not tell; ``<boot>`` is the
    boot's id, ``/`` and the pid namespace: containers of one host may share its name and its boot,
    yet mean another process by the same pid.
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

        :raises ProcessLookupError: there is none with this pid.
        """
        with suppress(PermissionError):
            os.kill(pid, 0)
        seen = _look(pid)
        start = f"{_boot()}:{seen[1]}" if seen else ""
        return cls(socket.gethostname(), pid, start)

    @property
    def here(self) -> bool:
        """Tell whether this host, in this boot and container, is the process's own."""
        return self.host == socket.gethostname() and self._boot == _boot() != ""

    def alive(self) -> bool | None:
        """Tell whether the process runs; ``None`` where that cannot be seen from here.

        A zombie has ended. So has everything of an earlier boot of this host.
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

    def kill(self) -> bool:
        """End the process at once, with its process group if it leads one; tell whether it was.

        Does nothing unless it is alive and here. A process that leads no group shares it with
        others, such as the shell it was started from, who are spared.
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
        """Ask the process alone to end, with SIGTERM; tell whether it was delivered."""
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
    """Name this boot and pid namespace; empty without Linux's /proc."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')[5:-1]}"  # pid:[4026531836]
    except OSError:
        return ""


def _look(pid: int) -> tuple[str, str] | None:
    """Return a process's state and the clock tick of its start; ``None`` if it is not to be seen.

    They are the fields 3 and 22 of proc(5)'s stat; field 2, the name, may hold anything.
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
