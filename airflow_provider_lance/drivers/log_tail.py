"""The newest lines of a log that grows and is rotated: ``x.log``, ``x.log.1`` and so on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

__all__ = ["LogTail", "end_of_log", "last_lines"]

_CHARACTERS = 2000
_LONGEST = 4 * _CHARACTERS + 1  # a line's first bytes, enough for its first characters
_BLOCK = 64 * 1024


class LogTail:
    """The lines written to a log since the last reading, limited to the newest.

    Reads from the log's beginning, rotated files included, or from its current end.

    :param keep: called with each line in turn; returns the text to show, ``None`` for none.
    """

    def __init__(
        self,
        path: str | Path,
        lines: int = 20,
        *,
        from_end: bool = False,
        keep: Callable[[str], str | None] | None = None,
    ) -> None:
        self._path, self._lines, self._keep = str(path), lines, keep
        self._inode, self._offset = 0, 0
        self._half = b""
        if from_end:
            self._go_to_end()

    def read(self) -> list[str]:
        """Return the new lines, up to the maximum number.

        One more line before them counts the omitted ones, if any. With ``keep`` the oldest lines
        are returned, and the count comes after them. A line counts once its end is written; a long
        line is cut to its first 2,000 characters. A missing log has no lines.
        """
        newest: deque[str | bytes] = deque(maxlen=self._lines)
        count = 0
        with ExitStack() as stack:
            for file, offset in self._files(stack):
                if offset is None:  # truncated in place
                    self._half = b""
                file.seek(offset or 0)
                while block := file.read(_BLOCK):
                    *ended, half = block.split(b"\n")
                    if ended:
                        ended[0] = (self._half + ended[0])[:_LONGEST]
                        self._half = half[:_LONGEST]
                        count += self._take(ended, newest)
                    else:
                        self._half = (self._half + half)[:_LONGEST]
                self._inode, self._offset = os.fstat(file.fileno()).st_ino, file.tell()
        passed = count - len(newest)
        where = "after" if self._keep else "before"
        note = [f"({passed} more line{'s' * (passed > 1)} {where} these)"] if passed else []
        lines = [line if isinstance(line, str) else _decoded(line) for line in newest]
        return [*lines, *note] if self._keep else [*note, *lines]

    def _take(self, ended: list[bytes], newest: deque[str | bytes]) -> int:
        """Add lines to the newest; return the number of lines to show."""
        if self._keep is None:
            newest.extend(line[:_LONGEST] for line in ended[-self._lines :])
            return len(ended)
        shown = [said for line in ended if (said := self._keep(_decoded(line[:_LONGEST])))]
        # Among selected lines, the first ones say more than the last.
        newest.extend(shown[: self._lines - len(newest)])
        return len(shown)

    @property
    def half_line(self) -> str:
        """Return the beginning of a line whose end was not written at the last reading."""
        return _decoded(self._half)

    def _files(self, stack: ExitStack) -> list[tuple[IO[bytes], int | None]]:
        """Open the files to read, oldest first, each with its start offset."""
        found: list[tuple[IO[bytes], int | None]] = []
        seen: set[int] = set()
        number = missing = 0
        while missing < 2:  # one may be missing for a moment, during a rotation
            try:
                file = stack.enter_context(_opened(self._path, number))
            except OSError:
                number, missing = number + 1, missing + 1
                continue
            number += 1
            status = os.fstat(file.fileno())
            if status.st_ino == self._inode:
                found.append((file, self._offset if status.st_size >= self._offset else None))
                break
            if status.st_ino not in seen:  # rotated during this loop
                seen.add(status.st_ino)
                found.append((file, 0))
        return found[::-1]

    def _go_to_end(self) -> None:
        """Move to the beginning of the last line if it has not ended, otherwise to the end."""
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _BLOCK))
                last = file.read(size - start).rfind(b"\n") + 1
                self._inode, self._offset = os.fstat(file.fileno()).st_ino, start + last
        except OSError:
            return


def last_lines(path: str | Path, count: int) -> list[str]:
    """Return a log's newest lines, including an unfinished last one; empty if there is no log."""
    tail = LogTail(path, count)
    lines = tail.read()[-count:]
    return [*lines, tail.half_line][-count:] if tail.half_line else lines


def end_of_log(path: str | Path, size: int = 256 * 1024) -> str:
    """Return a log's newest bytes as text, at most ``size``; empty if there is no log."""
    content = b""
    for number in range(2):
        try:
            with _opened(str(path), number) as file:
                there = file.seek(0, os.SEEK_END)
                file.seek(max(0, there - (size - len(content))))
                content = file.read() + content
        except OSError:
            break
        if len(content) >= size:
            break
    return content.decode(errors="replace")


def _opened(path: str, number: int) -> IO[bytes]:
    return os.fdopen(os.open(f"{path}.{number}" if number else path, os.O_RDONLY), "rb")


def _decoded(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\r")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
