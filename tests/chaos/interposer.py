"""The library between Lance and the file system: compiled once a run, loaded into drivers only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("pause_link.c")


class NoCompilerError(Exception):
    """There is no C compiler here."""


def compile_interposer(folder: Path) -> str:
    """Compile the library into a folder; return its path.

    :raises NoCompilerError: the message says what to install.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompilerError(
            "the laboratory compiles a small C file and found no `cc`: install gcc and the C "
            "library's headers (Debian: apt-get install gcc libc6-dev)"
        )
    library = folder / "pause_link.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(SOURCE), "-ldl"]
    subprocess.run([*command, "-o", str(library)], check=True)
    return str(library)


@contextmanager
def preloaded(library: str) -> Iterator[None]:
    """Let processes that start while the block runs load the library; empty loads none."""
    if not library:
        yield
        return
    os.environ["LD_PRELOAD"] = library
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]
