"""The few file operations that a checkpoint and its neighbours need, over pyarrow's filesystems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.option_parsers import is_absolute
from airflow_provider_lance.protocol.store_answers import answer_of, raw_text, short_answer

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["ArrowFiles", "Entry", "Files", "open_files"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder: its size in bytes, and its write time by the store's clock."""

    name: str
    size: int
    modified: datetime | None
    is_folder: bool = False


class Files(Protocol):
    """Small files below one location; paths are relative to it, with ``/`` between names."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content, ``None`` if there is no such file.

        :raises StorageUnavailableError: the store did not answer or refused.
        """

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder.

        :raises StorageUnavailableError: the store did not answer or refused.
        """

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, with the folders above it; replaces an older one.

        :raises StorageUnavailableError: the store did not answer or refused.
        """

    def remove(self, path: str) -> None:
        """Remove a folder and its content; the folder must exist.

        :raises StorageUnavailableError: the store did not answer or refused.
        """


class ArrowFiles:
    """Files on any store that pyarrow reaches; see :func:`open_files`."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, root: str, *, scheme: str = "") -> None:
        """Take an open filesystem.

        :param root: the location in it; ``scheme``, such as ``s3://``, precedes it in messages.
        """
        self._fs, self._root, self._scheme = filesystem, root.rstrip("/"), scheme

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def read(self, path: str) -> bytes | None:
        """Return a file's content, ``None`` if there is no such file."""
        try:
            with self._fs.open_input_stream(self._path(path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(path, error) from error

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        return [entry.name for entry in self.entries(path)]

    def entries(self, path: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name; empty if there is no such folder."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self._fs.get_file_info(FileSelector(self._path(path), allow_not_found=True))
        except OSError as error:
            raise self._unavailable(path, error) from error
        entries = (
            Entry(each.base_name, each.size or 0, each.mtime, each.type == FileType.Directory)
            for each in found
        )
        return sorted(entries, key=lambda entry: entry.name)

    def paths(self) -> list[str]:
        """Return the paths of all files below the location, sorted."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._path(""), allow_not_found=True, recursive=True)
        try:
            found = self._fs.get_file_info(selector)
        except OSError as error:
            raise self._unavailable("", error) from error
        start = len(self._path("").lstrip("/")) + 1
        files = [info.path.lstrip("/") for info in found if info.type == FileType.File]
        return sorted(path[start:] for path in files)

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, with the folders above it; replaces an older one."""
        target = self._path(path)
        try:
            self._fs.create_dir(target.rsplit("/", 1)[0], recursive=True)
            with self._fs.open_output_stream(target) as stream:
                stream.write(content)
        except OSError as error:
            raise self._unavailable(path, error) from error

    def remove(self, path: str) -> None:
        """Remove a folder and its content; the folder must exist."""
        try:
            self._fs.delete_dir(self._path(path))
        except OSError as error:
            raise self._unavailable(path, error) from error

    def move(self, path: str, to: str) -> None:
        """Rename a file, which must exist. On an object store this copies, then deletes."""
        target = self._path(to)
        try:
            self._fs.create_dir(target.rsplit("/", 1)[0], recursive=True)
            self._fs.move(self._path(path), target)
        except OSError as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: OSError) -> StorageUnavailableError:
        answer = answer_of(error)
        return StorageUnavailableError(
            f"cannot reach {self._scheme}{self._path(path)}: {answer.sentence}",
            detail=raw_text(error),
            denied=answer.denied,
        )


def open_files(location: str, storage_options: Mapping[str, str] | None = None) -> ArrowFiles:
    """Open a location by its URI or absolute path, with Lance's storage options.

    ``s3a://`` and ``s3n://``, as Spark spells them, are read as ``s3://``. Stores other than S3
    take their credentials from the environment.

    :raises SpecError: pyarrow has no filesystem for this scheme, or the path is relative.
    """
    from pyarrow import fs

    absolute = is_absolute(location)
    scheme = "" if location.startswith("/") else location.partition(":")[0].lower()
    if absolute and scheme in ("s3", "s3a", "s3n"):
        bucket_and_path = location.partition(":")[2].lstrip("/")
        store = fs.S3FileSystem(**_s3_arguments(storage_options or {}))
        return ArrowFiles(store, bucket_and_path, scheme="s3://")
    try:
        if not absolute:
            raise ValueError("it is neither an absolute path nor a URI")
        # Spark writes `file:/x`, which pyarrow knows only as `file:///x`.
        if scheme == "file":
            location = "/" + location.partition(":")[2].lstrip("/")
        shown = f"{scheme}://" if scheme not in ("", "file") else ""
        return ArrowFiles(*fs.FileSystem.from_uri(location), scheme=shown)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"cannot open {location!r}: {short_answer(error)}. Use an absolute path or a URI of a "
            "store that pyarrow serves (file, s3, gs, abfs, hdfs)"
        ) from error


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Turn Lance's S3 storage options into pyarrow's arguments."""
    lowered = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    endpoint = lowered.get("endpoint") or lowered.get("endpoint_url")
    arguments = {
        "access_key": lowered.get("access_key_id"),
        "secret_key": lowered.get("secret_access_key"),
        "session_token": lowered.get("session_token"),
        "region": lowered.get("region") or lowered.get("default_region"),
        "endpoint_override": endpoint.split("://", 1)[-1] if endpoint else None,
        "scheme": endpoint.split("://", 1)[0] if endpoint and "://" in endpoint else None,
    }
    return {name: value for name, value in arguments.items() if value}
