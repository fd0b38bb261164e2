"""What a driver does to itself at a named point: it dies there, or it stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from tests.chaos.life import kill
from tests.chaos.orders import Orders


class Fate:
    """Carries out the orders when their point is reached, in any process of the driver.

    ``python`` and ``jvm`` are the ids of the driver's two processes.
    """

    def __init__(self, orders: Orders, python: int, jvm: int) -> None:
        self._orders, self._python, self._jvm = orders, python, jvm
        self._left = orders.occurrence
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        """Be at a point: pass it, or end there."""
        with self._lock:
            if point != self._orders.point:
                return
            self._left -= 1
            if self._left:
                return
            if self._orders.hold:
                Path(f"{self._orders.sign}.hold").touch()
                return
            Path(f"{self._orders.sign}.struck").touch()
        if self._orders.pause:
            # To this thread: sent to the process, another thread might take it, and this one go on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            kill(self._python, self._jvm, self._orders.whom)

    def watch(self, log: Path, begun: bool) -> None:
        """Follow one of Spark's logs; what it has already does not count."""
        known = _entries(log, begun)
        while True:
            for number in _entries(log, begun) - known:
                known.add(number)
                self.reach(self._orders.point)
            time.sleep(0.001)


def _entries(log: Path, begun: bool) -> set[int]:
    try:
        names = os.listdir(log)
    except FileNotFoundError:
        return set()
    entries = {int(name) for name in names if name.isdigit()}
    if not begun:
        return entries
    # Spark writes `.5.<uuid>.tmp` and renames it to `5`.
    halves = (name.split(".") for name in names if name[0] == "." and name.endswith(".tmp"))
    return entries | {int(parts[1]) for parts in halves if parts[1].isdigit()}
