"""What a stream has not read, found without Spark: it does not run, or Spark does not say.

Its checkpoint says how far it has read. A Lance source is asked for its newest version, a folder of
files is listed. Any other source is not reached from here.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.checkpoint_files import log_offset
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.decoding import json_value
from airflow_provider_lance.protocol.files import Entry, Files, open_files
from airflow_provider_lance.protocol.offset_notes import COMPACT
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.reader import SourceReader
from airflow_provider_lance.supervision.heartbeat import Unread

__all__ = ["find_unread"]

_FOLDER = re.compile(r"FileStreamSource\[(.+)\]")
_GLOB = re.compile(r"[*?{\[]")


def find_unread(
    heartbeat: Mapping[str, Any] | None,
    checkpoint: Checkpoint | None,
    opener: Callable[[str], Files],
    storage_options: Mapping[str, str] | None = None,
) -> Unread | None:
    """Return what the sources have that no committed epoch has read; ``None`` if unknown.

    :param heartbeat: the newest of the stream's drivers; it says where the source is.
    :param opener: opens a location for small files.
    """
    if heartbeat is None or checkpoint is None:
        return None
    ends = checkpoint.ends.get(checkpoint.committed)
    if ends is None or len(ends) != 1:  # one source is what a heartbeat describes
        return None
    try:
        found = _of_lance(heartbeat, ends[0], storage_options)
        if found is None and (folder := _folder(heartbeat)):
            listed = open_files(folder, storage_options).entries("")
            found = _of_files(folder, listed, opener(checkpoint.location), ends[0])
        return found
    except (LanceStreamError, ImportError):  # it is not reached from here
        return None


def _of_lance(
    heartbeat: Mapping[str, Any], end: str, storage_options: Mapping[str, str] | None
) -> Unread | None:
    given = heartbeat.get("source")
    try:
        position = SourceOffset.found_in(json_value(end[end.index("{") :]))
    except ValueError:
        return None
    if position is None or position == NOT_BEGUN or not isinstance(given, Mapping):
        return None
    options = SourceOptions.spelled(given)
    port = open_dataset(options.path, storage_options, cache_bytes=LOOK_CACHE_BYTES)
    columns = SourceColumns.of(port, options.columns)
    lag = SourceReader(options, columns, storage_options).lag(position)
    return Unread(lag.rows, lag.versions, round(lag.seconds, 1))


def _of_files(folder: str, entries: list[Entry], files: Files, end: str) -> Unread | None:
    """Take away from a folder's files what the source's log names.

    If the folder has folders, the answer is unknown: only Spark's options say which it reads.
    """
    newest = log_offset(end)
    read = None if newest is None else _read_files(files, newest)
    if read is None or {posixpath.dirname(_path(each)) for each in read} - {_path(folder)}:
        return None
    seen = {posixpath.basename(each) for each in read}
    if any(entry.is_folder and not _is_hidden(entry.name) for entry in entries):
        return None
    unread = [entry for entry in entries if entry.name not in seen and not _is_hidden(entry.name)]
    times = [entry.modified for entry in unread if entry.modified]
    age = (datetime.now(UTC) - min(times)).total_seconds() if times else 0.0
    return Unread(float(len(unread)), seconds=round(max(0.0, age), 1), files=True)


def _folder(heartbeat: Mapping[str, Any]) -> str:
    """Return the folder that Spark's progress names, empty for another kind of source."""
    progress = heartbeat.get("progress")
    sources = progress.get("sources") if isinstance(progress, Mapping) else None
    first = sources[0] if isinstance(sources, list) and len(sources) == 1 else None
    said = _FOLDER.fullmatch(str(first.get("description"))) if isinstance(first, Mapping) else None
    return "" if said is None or _GLOB.search(said[1]) else said[1].rstrip("/")


def _read_files(files: Files, newest: int) -> list[str] | None:
    """Return the files that a file source's log names up to an entry; ``None`` if it has gaps."""
    folder = "sources/0"
    names = files.names(folder)
    compact = [name.removesuffix(COMPACT) for name in names if name.endswith(COMPACT)]
    base = max(
        (int(each) for each in compact if each.isdecimal() and int(each) <= newest), default=-1
    )
    paths = [f"{folder}/{base}{COMPACT}"] if base >= 0 else []
    paths += [f"{folder}/{number}" for number in range(base + 1, newest + 1)]
    found: list[str] = []
    for path in paths:
        content = files.read(path)
        if content is None:
            return None
        found += _entries(content)
    return found


def _entries(content: bytes) -> Iterator[str]:
    for line in content.split(b"\n")[1:]:
        try:
            yield unquote(str(json.loads(line)["path"]))
        except (ValueError, KeyError, TypeError):
            continue


def _path(place: str) -> str:
    """Return a place without its scheme, since `file:/x` and `file:///x` are one."""
    return re.sub(r"^file:/*", "/", place).rstrip("/")


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
