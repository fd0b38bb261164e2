"""Files of a checkpoint that Spark cannot read.

A crash on a store whose renames are not atomic, or that loses unsynchronised data, leaves files
empty or cut off. On start, Spark reads the newest two of `offsets`, the newest of `commits`, and
the file source's own log, and fails on any of them (seen on Spark 4.3). It ignores names that are
not numbers.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

from airflow_provider_lance.exceptions import (
    ChecksumMismatchError,
)
from airflow_provider_lance.protocol.checkpoint import (
    Checkpoint,
    OffsetLog,
    parse_offsets,
    require_json,
)
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.offset_notes import COMPACT

__all__ = [
    "CheckpointReader",
    "CorruptFile",
    "checksum_path",
    "find_corrupt",
    "log_offset",
]

_CHECKSUM_MAGIC = b"crc\0"
_DISAGREES = "its checksum file disagrees with it"
_LOG_OFFSET = re.compile(r'\{"logOffset":(-?\d{1,18})\}')


@dataclass(frozen=True, slots=True)
class CorruptFile:
    """One corrupt file, by its path in the checkpoint, and what is wrong with it."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} ({self.why})"


def find_corrupt(files: Files, checkpoint: Checkpoint) -> tuple[CorruptFile, ...]:
    """Return the corrupt ones among the files that Spark reads first; three to seven small reads.

    These are the newest two of `offsets`, the newest of `commits`, and from a file source's log the
    entry that the newest epoch ends with and the one after it.

    :raises StorageUnavailableError: the store did not answer or refused.
    """
    found = CheckpointReader(files, verify=False)
    newest = found.offsets(checkpoint.planned)
    found.offsets(checkpoint.planned - 1)
    found.commit(checkpoint.committed)
    for source, offset in newest.sources.items() if newest else ():
        if (entry := log_offset(offset)) is not None:
            for number in (entry, entry + 1):
                found.either(f"sources/{source}/{number}")
    return tuple(found.corrupt.values())


class CheckpointReader:
    """Reads files and collects what is wrong with them, in the order of reading."""

    def __init__(self, files: Files, *, verify: bool) -> None:
        """Read through ``files``; ``verify`` compares checksums, which ``files`` does not."""
        self.corrupt: dict[str, CorruptFile] = {}
        self._files, self._verify = files, verify

    def offsets(self, epoch: int) -> OffsetLog | None:
        """Read where an epoch ends; ``None`` if the file is missing or corrupt."""
        path = f"offsets/{epoch}"
        content = self.content(path) if epoch > NO_EPOCH else None
        try:
            return None if content is None else parse_offsets(content)
        except ValueError as error:
            self._note(path, str(error))
            return None

    def commit(self, epoch: int) -> None:
        """Read a file of the commit log."""
        path = f"commits/{epoch}"
        content = self.content(path) if epoch > NO_EPOCH else None
        if content is None:
            return
        version, *rest = content.split(b"\n")
        if version.strip() not in (b"v1", b"v2"):
            self._note(path, _first_line(version))
        elif rest and rest[0]:
            self._json(path, rest[0], "its second line")

    def entry(self, path: str) -> bool | None:
        """Read an entry of a file source's log: whether it is intact, ``None`` if it is missing."""
        content = self.content(path)
        if content is None:
            return False if path in self.corrupt else None
        version, *lines = content.removesuffix(b"\n").split(b"\n")
        if version != b"v1":
            self._note(path, _first_line(version))
        elif lines:
            self._json(path, lines[-1], "its last line")
        return path not in self.corrupt

    def either(self, path: str) -> None:
        """Read an entry of a file source's log, or the compact entry with its number."""
        if self.entry(path) is None:
            self.entry(path + COMPACT)

    def content(self, path: str) -> bytes | None:
        """Return a file's content; ``None`` if it is missing or noted as corrupt."""
        if path in self.corrupt:
            return None
        try:
            content = self._files.read(path)
        except ChecksumMismatchError:
            self._note(path, _DISAGREES)
            return None
        if content == b"":
            self._note(path, "it is empty")
        elif content and self._verify and not self._agrees(path, content):
            self._note(path, _DISAGREES)
        return None if path in self.corrupt else content

    def missing(self, path: str) -> None:
        """Note a file that is missing."""
        self._note(path, "it is missing")

    def _agrees(self, path: str, content: bytes) -> bool:
        """Return whether a file matches the checksum that Hadoop keeps for it on a local disk."""
        try:
            sums = self._files.read(checksum_path(path)) or b""
        except ChecksumMismatchError:
            return True
        if not sums.startswith(_CHECKSUM_MAGIC) or len(sums) < 8:
            return True
        size = struct.unpack(">i", sums[4:8])[0]
        parts = (content[at : at + size] for at in range(0, len(content), size)) if size > 0 else ()
        return sums[8:] == b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)

    def _json(self, path: str, line: bytes, what: str) -> None:
        try:
            require_json(line.decode(), what)
        except ValueError as error:
            self._note(path, str(error))

    def _note(self, path: str, why: str) -> None:
        self.corrupt.setdefault(path, CorruptFile(path, why))


def checksum_path(path: str) -> str:
    """Return where Hadoop keeps a file's checksum on a local disk."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def log_offset(offset: str) -> int | None:
    """Return the entry that a file source's offset names, ``None`` for another kind of source."""
    found = _LOG_OFFSET.fullmatch(offset.replace(" ", ""))
    return int(found[1]) if found else None


def _first_line(line: bytes) -> str:
    return f"its first line is {line[:20].decode(errors='replace')!r}, not a version"
