"""The output of a Spark job that its task waits for: all of it in a file, what matters in the log.

A stream's task shows its driver's log by the same rule: warnings and errors, repeats counted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.compat import masked_texts
from airflow_provider_lance.drivers.rotating_log import Redactor, RotatingLog
from airflow_provider_lance.triggers.task_log import Warnings

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["JobOutput", "Progress"]

_PROGRESS = re.compile(r"\S+ \S+ INFO (?P<said>Compacting\. task=(?P<done>\d+) of (?P<tasks>\d+))")


class Progress:
    """Tells which of many finished tasks to show: at most ten, and the last."""

    def __init__(self) -> None:
        self._tenths = 0

    def shows(self, done: int, tasks: int) -> bool:
        """Tell whether this is the first of another tenth of all tasks."""
        before, self._tenths = self._tenths, 10 * done // max(tasks, 1)
        return self._tenths > before


class JobOutput:
    """Takes a job's output line by line.

    :param path: the file that gets every line, without the texts that Airflow masks.
    """

    def __init__(self, log: Logger, path: Path) -> None:
        self._log, self._file = log, RotatingLog(path)
        self._redactor = Redactor(masked_texts())
        self._warnings, self._progress = Warnings(), Progress()

    def take(self, line: str) -> None:
        """Write a line into the file; show it in the task's log if it is a warning or progress."""
        line = line.rstrip("\r\n")
        self._file.write(self._redactor.clean(f"{line}\n".encode(errors="replace")))
        if found := _PROGRESS.fullmatch(line):
            if self._progress.shows(int(found["done"]), int(found["tasks"])):
                self._log.info("%s", found["said"])
        elif shown := self._warnings(line):
            self._log.info("%s", shown)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
