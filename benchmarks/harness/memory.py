"""What a process and its children hold: resident memory, descriptors, threads; from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Held:
    """What some processes hold together; ``mib`` is their resident memory."""

    mib: float = 0.0
    descriptors: int = 0
    threads: int = 0
    processes: int = 0

    def plus(self, other: Held) -> Held:
        return Held(
            self.mib + other.mib,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
            self.processes + other.processes,
        )


def held(pid: int | None = None) -> Held:
    """Return what one process holds, this one by default; nothing if it has ended."""
    place = PROC / str(pid or os.getpid())
    try:
        status = dict(
            line.split(":", 1)
            for line in (place / "status").read_text().splitlines()
            if ":" in line
        )
        descriptors = len(list((place / "fd").iterdir()))
    except OSError:
        return Held()
    if "VmRSS" not in status:  # a zombie
        return Held()
    resident = int(status["VmRSS"].split()[0]) / 1024
    return Held(round(resident, 1), descriptors, int(status["Threads"]), 1)


def held_by_children(pid: int) -> Held:
    """Return what all processes below one hold together."""
    found = Held()
    for child in _children(pid):
        found = found.plus(held(child)).plus(held_by_children(child))
    return found


def _children(pid: int) -> Iterator[int]:
    for place in PROC.iterdir():
        if not place.name.isdigit():
            continue
        try:
            # The name, in brackets, may hold anything; the parent is the second word after it.
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if int(parent) == pid:
            yield int(place.name)
