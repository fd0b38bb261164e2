"""A second record of where each epoch ends and which files it read, that nobody can replace.

Spark looks whether `offsets/N` is there and then renames the file into place. On a local disk a
driver that was paused between the two replaces its successor's file, at any later time; likewise
`sources/S/M`, which lists the files of a file source's entry M. A note is created exclusively,
before the epoch's rows are read, from what Spark has in memory. Other stores have no notes: on HDFS
Spark's own rename is exclusive.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_lance.exceptions import (
    AccessDeniedError,
    LanceStreamError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.decoding import json_object, plain_text
from airflow_provider_lance.protocol.end_offsets import ends_of_json, ends_to_json, hexadecimal
from airflow_provider_lance.protocol.model import EndOffsets

__all__ = [
    "COMPACT",
    "NOTES",
    "OffsetNote",
    "OffsetNotes",
    "changed_entries",
    "files_of",
    "local_folder",
    "read_entries",
]

NOTES = "lance-offsets"
"""The folder of the notes in a checkpoint."""

_KEPT = 100
"""As many as Spark keeps of its own files; a file source's log is compacted after 10 entries."""

COMPACT = ".compact"
"""The end of the name of an entry that has all earlier ones, too."""

_ABSENT = (FileNotFoundError, NotADirectoryError)
_ENTRIES = "entries"
_BATCH = re.compile(rb'"batchId": ?(\d{1,18})')
_NUMBER = re.compile("0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class OffsetNote:
    """Where an epoch ends, and the entries of file sources' logs that it read.

    ``entries`` has the lines of an entry by its path, ``sources/0/12``: one for each file, sorted.
    """

    ends: EndOffsets
    entries: Mapping[str, EndOffsets] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return the note as JSON; of an entry with long lines, only the digest."""
        entries = {path: each.lines or each.digest for path, each in self.entries.items()}
        record = ends_to_json(self.ends) | ({_ENTRIES: entries} if entries else {})
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> OffsetNote:
        """Read what :meth:`dumps` made.

        :raises ValueError: the text has another form; see :mod:`.decoding`.
        """
        record = json_object(text)
        ends, entries = ends_of_json(record), record.get(_ENTRIES, {})
        if ends is None or not isinstance(entries, dict):
            raise ValueError("where an epoch ends, and the entries that it read")
        return cls(ends, {path: _lines_of(value) for path, value in entries.items()})


def _lines_of(value: Any) -> EndOffsets:
    if isinstance(value, list):
        return EndOffsets.of([plain_text(line) for line in value])
    return EndOffsets(hexadecimal(value, "the digest of an entry"))


def local_folder(location: str) -> Path | None:
    """Return a checkpoint's folder if it is on a file system of this host, ``None`` otherwise."""
    if location.startswith("/"):
        return Path(location)
    scheme, _, path = location.partition(":")
    return Path("/" + path.lstrip("/")) if scheme == "file" else None


class OffsetNotes:
    """The notes of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._folder = checkpoint / NOTES

    def epochs(self) -> list[int]:
        """Return the epochs with a note, sorted."""
        try:
            names = os.listdir(self._folder)
        except _ABSENT:
            return []
        except OSError as error:
            raise _unreachable(self._folder, error) from error
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def read(self, epoch_id: int) -> OffsetNote | None:
        """Return an epoch's note; ``None`` if there is none, or its driver ended while writing."""
        try:
            return OffsetNote.loads((self._folder / str(epoch_id)).read_text())
        except (*_ABSENT, ValueError):
            return None
        except OSError as error:
            raise _unreachable(self._folder, error) from error

    def add(self, epoch_id: int, note: OffsetNote) -> bool:
        """Write an epoch's note; return whether this is the first one, or one that says the same.

        :raises AccessDeniedError, StorageUnavailableError: it cannot be written.
        """
        path = self._folder / str(epoch_id)
        try:
            try:
                self._create(path, note)
            except FileNotFoundError:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._create(path, note)
        except FileExistsError:
            return self.read(epoch_id) == note
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        with suppress(OSError):
            (self._folder / str(epoch_id - _KEPT)).unlink()
        return True

    def replace(self, epoch_id: int, note: OffsetNote) -> None:
        """Write an epoch's note over one that says something else; as the query's owner only.

        :raises AccessDeniedError, StorageUnavailableError: it cannot be written.
        """
        path = self._folder / str(epoch_id)
        try:
            path.unlink(missing_ok=True)
            self._create(path, note)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def _create(self, path: Path, note: OffsetNote) -> None:
        with path.open("x") as file:
            file.write(note.dumps())


def _unreachable(folder: Path, error: OSError) -> StorageUnavailableError:
    said = f"cannot reach {folder}: {error.strerror or error}"
    return StorageUnavailableError(said, denied=isinstance(error, PermissionError))


def _unwritable(folder: Path, error: OSError) -> LanceStreamError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageUnavailableError
    return kind(f"cannot write into {folder}: {error.strerror or error}")


# -------------------------------------------------------------------------------- file sources


def changed_entries(notes: OffsetNotes) -> dict[int, dict[str, EndOffsets]]:
    """Return the entries of file sources' logs that are not what the epochs read.

    By epoch and path, with the lines that were read; without them if a compact entry has others.
    Spark reads the newest compact entry and those after it. What is missing there is not compared:
    :mod:`.checkpoint_corruption` reports it.

    :raises StorageUnavailableError: a file cannot be read.
    """
    noted = {
        epoch: note.entries for epoch in notes.epochs() if (note := notes.read(epoch)) is not None
    }
    wanted: dict[str, set[int]] = {}
    for entries in noted.values():
        for path in entries:
            folder, _, number = path.rpartition("/")
            wanted.setdefault(folder, set()).add(int(number))
    seen = {
        f"{folder}/{number}": EndOffsets.of(lines)
        for folder, numbers in wanted.items()
        for number, lines in read_entries(notes.checkpoint / folder, numbers).items()
    }
    changed: dict[int, dict[str, EndOffsets]] = {}
    for epoch, entries in noted.items():
        for path, read in entries.items():
            if seen.get(path, read).digest != read.digest:
                plain = (notes.checkpoint / path).exists()
                changed.setdefault(epoch, {})[path] = read if plain else EndOffsets(read.digest)
    return changed


def read_entries(folder: Path, numbers: Iterable[int]) -> dict[int, list[str]]:
    """Return the lines of entries of a file source's log, sorted, as far as they are there.

    :raises StorageUnavailableError: a file cannot be read.
    """
    wanted, found = set(numbers), dict[int, list[str]]()
    try:
        compact = max(map(_compact, os.listdir(folder)), default=-1)
        names = [f"{compact}{COMPACT}"] if compact >= min(wanted, default=0) else []
        names += [str(number) for number in wanted if number > compact]
        for name in names:
            with suppress(FileNotFoundError):
                _collect((folder / name).read_bytes(), wanted, found)
    except _ABSENT:
        return {}
    except OSError as error:
        raise _unreachable(folder, error) from error
    return {number: sorted(lines) for number, lines in found.items()}


def _compact(name: str) -> int:
    number = name.removesuffix(COMPACT)
    return int(number) if number != name and _NUMBER.fullmatch(number) else -1


def _collect(content: bytes, wanted: set[int], found: dict[int, list[str]]) -> None:
    """Add the lines that belong to the wanted entries; a compact entry has those of all."""
    for line in content.split(b"\n")[1:]:
        number = _BATCH.search(line)
        if number and int(number[1]) in wanted:
            found.setdefault(int(number[1]), []).append(line.decode(errors="replace"))


def files_of(lines: Iterable[str]) -> set[str]:
    """Return the files that lines of an entry name, as Spark writes them: ``file:///data/a%20b``.

    :raises ValueError: a line is cut off.
    """
    try:
        return {str(json.loads(line)["path"]) for line in lines}
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"an entry with files ({error})") from None
