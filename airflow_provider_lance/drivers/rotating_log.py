"""Write a driver's output to a log: without secrets, within a size limit, without blocking."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

__all__ = ["Redactor", "RotatingLog", "pump"]

_MASK = b"***"
_SHORTEST = 4
_BLOCK = 64 * 1024


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
