"""How a driver's process comes into being: forked from one that has loaded the modules already.

That spares every driver a second of processor time. Lance is not among them: it does not survive a
fork. The process that is forked from has the interposer loaded, so every driver has it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.chaos.interposer import preloaded

PR_SET_PDEATHSIG = 1
LOADED = ["pandas", "pyarrow.dataset", "pyarrow.parquet", "tests.chaos.driver"]


def give_birth(
    orders: Path, log: Path, environment: Mapping[str, str], interposer: str = ""
) -> BaseProcess:
    """Start a driver in a session of its own, its output in a file.

    :param interposer: the library's path; the first call in a process decides for all.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with preloaded(interposer):
        forkserver.ensure_running()
    process = context.Process(target=_live, args=(str(orders), str(log), dict(environment)))
    process.start()
    return process


def _live(orders: str, log: str, environment: dict[str, str]) -> None:
    os.setsid()
    # Whatever ends the laboratory ends its drivers, too; a JVM ends with its Python.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.pop("LD_PRELOAD", None)  # the JVM does without
    os.environ.update(environment, PYSPARK_PYTHON=sys.executable)
    tempfile.tempdir = None  # as the environment says
    assert "lance" not in sys.modules

    from tests.chaos.driver import main

    main(orders)
