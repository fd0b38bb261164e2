"""The folder of one launch, private to this user: ``<root>/<query id>/<launch id>/``."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.decoding import json_object, whole
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.supervision.driver_reports import is_launch_id
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["RunDirectory", "forget_old_launches"]

_MOST = 2**31  # the largest signal or status
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one launch; creating this object touches no disk.

    - ``spec.json``: the job's specification, secrets included; removed once the driver has ended.
    - ``driver.json``: the running processes, as :class:`.local.LocalDriver` reads it, or why none
      runs.
    - ``stop.json``: who asked the driver to stop.
    - ``exit.json``: ``status`` (negative: ended by that signal) and ``time`` of the driver's end.
    - ``driver.log``, ``driver.log.1``, …: the driver's output, newest first.
    - ``keeper.log``: the driver wrapper's own log.

    :raises SpecError: an id cannot be a folder's name.
    """

    root: Path
    query_id: str
    launch_id: str

    def __post_init__(self) -> None:
        require_query_id(self.query_id)
        if not _NAME.fullmatch(self.launch_id):
            raise SpecError(
                f"launch id {self.launch_id!r} cannot be a folder's name: use up to 128 letters, "
                "digits, '.', '_' and '-', the first a letter or digit"
            )

    @classmethod
    def at(cls, path: str | Path) -> Self:
        """Return the folder with this path."""
        path = Path(path)
        return cls(path.parent.parent, path.parent.name, path.name)

    @property
    def path(self) -> Path:
        """Return the folder's path."""
        return self.root / self.query_id / self.launch_id

    @property
    def spec_file(self) -> Path:
        """Return the path of the job's specification, which exists until the driver has ended."""
        return self.path / "spec.json"

    @property
    def driver_log(self) -> Path:
        """Return the path of the driver's output."""
        return self.path / "driver.log"

    @property
    def keeper_log(self) -> Path:
        """Return the path of the driver wrapper's own log."""
        return self.path / "keeper.log"

    def make(self) -> None:
        """Create the folder, and missing ones above it, for this user only.

        :raises SpecError: this user may not.
        :raises StorageUnavailableError: there is no space.
        """
        with self._errors_named():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for path in (self.root, self.path.parent, self.path):
                path.mkdir(mode=0o700, exist_ok=True)

    def write_spec(self, text: str) -> Path:
        """Write the job's specification, private from its first byte on; return its path.

        :raises SpecError: it exists already, or this user may not write here.
        :raises StorageUnavailableError: there is no space.
        """
        with self._errors_named():
            try:
                _write_new(self.spec_file, text)
            except FileExistsError:
                raise SpecError(
                    f"{self.spec_file} already exists; make a new launch id for each launch"
                ) from None
        return self.spec_file

    def open_keeper_log(self) -> IO[bytes]:
        """Open the driver wrapper's log for appending.

        :raises SpecError: this user may not.
        :raises StorageUnavailableError: there is no space.
        """
        with self._errors_named():
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            return os.fdopen(os.open(self.keeper_log, flags, 0o600), "ab")

    def remove_spec(self) -> None:
        """Remove the job's specification, if it exists."""
        with suppress(OSError):
            self.spec_file.unlink()

    def publish(self, driver: Mapping[str, Any]) -> bool:
        """Write ``driver.json`` atomically; ``False`` if it exists already.

        :raises OSError: it cannot be written.
        """
        try:
            _write_new(self.path / "driver.json", json.dumps(driver))
        except FileExistsError:
            return False
        return True

    def write_stop(self, by: str) -> None:
        """Record who asks the driver to stop, for the driver wrapper; the last request counts.

        :raises OSError: it cannot be written.
        """
        hidden = self.path / f".stop.{os.getpid()}.json"
        hidden.write_text(json.dumps({"by": by}))
        hidden.rename(self.path / "stop.json")

    def read_stop(self) -> str | None:
        """Return who asked the driver to stop, ``None`` if the request was not signed."""
        by = (_read(self.path / "stop.json") or {}).get("by")
        return by if isinstance(by, str) else None

    def write_exit(self, status: int) -> None:
        """Record the driver's exit status and the current time.

        :raises OSError: it cannot be written.
        """
        _write_new(self.path / "exit.json", json.dumps({"status": status, "time": utc_now()}))

    def read_driver(self) -> dict[str, Any] | None:
        """Return the content of ``driver.json``, ``None`` before it is written."""
        return _read(self.path / "driver.json")

    def read_exit(self) -> dict[str, Any] | None:
        """Return the driver's recorded exit, ``None`` while there is none that is readable."""
        document = _read(self.path / "exit.json") or {}
        try:
            return document | {"status": whole(document.get("status"), -_MOST, _MOST)}
        except ValueError:
            return None

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = f"cannot write to {self.path}: {error.strerror} ({error.filename})"
            if error.errno in _REFUSED:
                raise SpecError(
                    f"{said}. Let this user write there, or name another folder for drivers"
                ) from error
            raise StorageUnavailableError(f"{said}. Free some space there") from error


def forget_old_launches(root: Path, query_id: str, keep: int = 20) -> None:
    """Remove the folders of all but a query's newest launches; their names sort by time.

    A folder whose driver or wrapper may still be alive stays, and so do files that others put
    there. The specification that a killed driver left is removed in every folder.
    """
    try:
        found = sorted(os.listdir(root / query_id))
    except OSError:
        return
    folders = [RunDirectory(root, query_id, name) for name in found if is_launch_id(name)]
    for age, folder in enumerate(reversed(folders)):
        document = folder.read_driver()
        if document and _may_run(folder, document):
            continue
        if age >= keep:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif document:
            folder.remove_spec()


def _may_run(folder: RunDirectory, document: Mapping[str, Any]) -> bool:
    ended = folder.read_exit() is not None
    for name in ("driver", "keeper"):
        with suppress(KeyError, TypeError, ValueError):
            alive = ProcessIdentity.read_json(document[name]).alive()
            # On another host, only the recorded exit shows it.
            if alive or (alive is None and not ended):
                return True
    return False


def _write_new(path: Path, text: str) -> None:
    """Create a file, private from its first byte on; whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json_object(path.read_bytes())
    except (OSError, ValueError):
        return None
