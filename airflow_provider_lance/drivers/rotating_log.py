"""A driver's log, ``x.log``, ``x.log.1`` and so on, newest first: written and read.

It is written without secrets, within a size limit, without blocking. Readers follow it while it
grows and is rotated.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

__all__ = ["LogTail", "Redactor", "RotatingLog", "end_of_log", "last_lines", "pump"]

_MASK = b"***"
_SHORTEST = 4
_BLOCK = 64 * 1024
_CHARACTERS = 2000
_LONGEST = 4 * _CHARACTERS + 1  # a line's first bytes, enough for its first characters


class Redactor:
    """Replaces secrets with ``***``, the longest first.

    A secret is also found in its JSON and URL spellings, and a multi-line one line by line, because
    output is processed by line. Texts of fewer than 4 characters stay: replacing them would make
    any log unreadable and protect nothing.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {
            form.strip()
            for secret in secrets
            for form in (
                *secret.splitlines(),
                json.dumps(secret)[1:-1],
                quote(secret, safe="", errors="surrogateescape"),
            )
        }
        known = sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True)
        encoded = [form.encode(errors="surrogateescape") for form in known]
        self.longest = max(map(len, encoded), default=1)
        self._pattern = re.compile(b"|".join(map(re.escape, encoded))) if encoded else None

    def clean(self, content: bytes) -> bytes:
        """Return the content without secrets."""
        return self._pattern.sub(_MASK, content) if self._pattern else content

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self.clean(text.encode(errors="surrogateescape")).decode(errors="replace")

    def cut(self, content: bytes) -> int:
        """Return how much of a line's beginning can be cleaned before the rest arrives."""
        end = max(0, len(content) - self.longest + 1)
        for found in self._pattern.finditer(content) if self._pattern else ():
            if found.start() < end < found.end():
                return found.end()
        return end


class RotatingLog:
    """A log of at most ``files`` files of ``size`` bytes: ``x.log``, ``x.log.1``, newest first.

    Output that cannot be written is dropped; the log records the dropped amount once it is
    writable.
    """

    def __init__(self, path: Path, size: int = 10 * 1024 * 1024, files: int = 5) -> None:
        self._path, self._size, self._files = path, size, files
        self._descriptor: int | None = None
        self._written = self._dropped = 0

    def write(self, content: bytes) -> None:
        """Append to the log; raises nothing."""
        try:
            self._open()
            if self._written and self._written + len(content) > self._size:
                self._rotate()
                self._open()
            if self._dropped:
                self._put(f"\n({self._dropped} bytes could not be written here)\n".encode())
                self._dropped = 0
            self._put(content)
        except OSError:
            self._dropped += len(content)
            self.close()

    def close(self) -> None:
        """Close the log; writing opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)

    def _open(self) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._descriptor = os.open(self._path, flags, 0o600)
            self._written = os.fstat(self._descriptor).st_size

    def _put(self, content: bytes) -> None:
        assert self._descriptor is not None
        while content:
            count = os.write(self._descriptor, content)
            self._written += count
            content = content[count:]

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = f".{number - 1}" if number > 1 else ""
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{older}", f"{self._path}.{number}")


def pump(source: int, log: RotatingLog, redactor: Redactor) -> None:
    """Copy a pipe into a log until its end, line by line as long as lines are not too long."""
    rest = b""
    while block := os.read(source, _BLOCK):
        rest += block
        end = rest.rfind(b"\n") + 1
        if not end and len(rest) > _BLOCK:
            end = redactor.cut(rest)
        if end:
            log.write(redactor.clean(rest[:end]))
            rest = rest[end:]
    log.write(redactor.clean(rest))
    log.close()


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
