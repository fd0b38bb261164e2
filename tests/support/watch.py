"""Spark drivers seen from outside, in /proc: which live, since when, and for how long together."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"


@dataclass(frozen=True)
class Process:
    """One live process; zombies are none. ``start`` is in ticks since boot."""

    pid: int
    parent: int
    state: str
    start: int
    command: tuple[str, ...]

    def signal(self, sign: signal.Signals) -> bool:
        """Send a signal to exactly this process; tell whether it was still there."""
        now = process(self.pid)
        if now is None or now.start != self.start:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, sign)
        return True


def process(pid: int) -> Process | None:
    """Read one process, ``None`` if it has ended."""
    folder = Path("/proc", str(pid))
    try:
        stat = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    state, parent, *rest = stat.rpartition(")")[2].split()
    if state in "ZX":
        return None
    return Process(pid, int(parent), state, int(rest[17]), tuple(command.rstrip("\0").split("\0")))


def processes() -> list[Process]:
    """Read every process of this machine."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in found if each]


def descendants(root: int, among: list[Process]) -> Iterator[Process]:
    """Yield the children of a process, theirs, and so on."""
    for each in among:
        if each.parent == root:
            yield each
            yield from descendants(each.pid, among)


@dataclass(frozen=True)
class Driver:
    """One Spark driver: spark-submit's JVM and its Python child, of which one may be dead."""

    jvm: Process | None
    python: Process | None

    @property
    def key(self) -> tuple[int, int]:
        """Name the driver for as long as its Python lives."""
        first = self.python or self.jvm
        assert first is not None
        return first.pid, first.start

    def tree(self) -> list[Process]:
        """Return JVM, Python child and their Python workers."""
        among = processes()
        roots = [each for each in (self.jvm, self.python) if each]
        found = {each.pid: each for each in roots}
        for root in roots:
            found |= {each.pid: each for each in descendants(root.pid, among)}
        return list(found.values())

    def signal(self, sign: signal.Signals) -> None:
        """Send one signal to every process of the driver."""
        for each in self.tree():
            each.signal(sign)


def drivers(*words: str) -> list[Driver]:
    """Find the live drivers whose command line holds one of the words, oldest first."""
    among = processes()
    marked = [each for each in among if any(word in " ".join(each.command) for word in words)]
    jvms = [each for each in marked if _SUBMIT in each.command]
    applications = [
        each
        for each in among
        if _SUBMIT not in each.command
        and any(word.endswith("spark/job.py") for word in each.command[:3])
        and (each in marked or any(each.parent == jvm.pid for jvm in jvms))
    ]
    # A process that such a Python is just starting looks like it until it runs its own program.
    forks = {each.pid for each in applications}
    applications = [each for each in applications if each.parent not in forks]
    found = [
        Driver(jvm, next((each for each in applications if each.parent == jvm.pid), None))
        for jvm in jvms
    ]
    paired = {driver.python.pid for driver in found if driver.python}
    found += [Driver(None, each) for each in applications if each.pid not in paired]
    return sorted(found, key=lambda driver: driver.key[1])


@dataclass
class Timeline:
    """What was seen every ``interval`` seconds while the block ran.

    ``look`` is called about once a second and what it returns is kept where it changes.
    """

    find: Callable[[], list[Driver]]
    look: Callable[[], Any]
    interval: float = 0.15
    alive: list[tuple[float, frozenset[tuple[int, int]]]] = field(default_factory=list)
    states: list[tuple[float, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(30)

    @property
    def most(self) -> int:
        """Return how many drivers lived at once."""
        return max((len(keys) for _, keys in self.alive), default=0)

    @property
    def overlap(self) -> float:
        """Return the seconds in which two or more lived."""
        pairs = itertools.pairwise(self.alive)
        return sum(later - now for (now, keys), (later, _) in pairs if len(keys) > 1)

    @property
    def without(self) -> float:
        """Return the longest time without any, in seconds, after the first was seen."""
        longest, since = 0.0, None
        for now, keys in self.alive:
            since = None if keys else since or now
            longest = max(longest, now - since if since else 0.0)
        return longest

    def _run(self) -> None:
        looked = 0.0
        while not self._ended.wait(self.interval):
            # A driver counts from when its Python runs: before that it can write nothing.
            living = frozenset(each.key for each in self.find() if each.python)
            if living or self.alive:
                self.alive.append((time.time(), living))
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                with suppress(OSError):
                    state = self.look()
                    if not self.states or self.states[-1][1] != state:
                        self.states.append((time.time(), state))
