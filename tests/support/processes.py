"""Processes of a test: started, watched, ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A third less start-up time for drivers that live for seconds."""


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until a condition holds; fail with its name when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for: {what}")
        time.sleep(0.1)


def python(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start this interpreter in a session of its own, its output kept for the test."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd or REPOSITORY,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            **(environment or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 180) -> tuple[int, str]:
    """Wait for a process; return its status and output. Its whole session ends with it."""
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a process's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
