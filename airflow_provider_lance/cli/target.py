"""The dataset of a command, and what opens it: a connection, or options."""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_lance.cli.waiting import answer_within
from airflow_provider_lance.diagnostics.traces import find_traces
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decoding import json_value, shown
from airflow_provider_lance.protocol.option_parsers import location, strings

__all__ = ["Place", "Target", "find_place", "hook_class", "open_place", "open_target"]

if TYPE_CHECKING:
    from airflow_provider_lance.hooks.lance import LanceHook

T = TypeVar("T")

_FIRST = (
    "A stream leaves its first trace with its first epoch; name its checkpoint with --checkpoint "
    "to see its driver before that"
)
_SECRET = re.compile(
    r"key|secret|token|passw|credential|sas|signature|authorization|account$", re.IGNORECASE
)
_PASSWORD = re.compile(r"//[^/?#]*:[^/?#]*@")
_NAMES_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HARMLESS = {"skip_signature", "aws_skip_signature"}


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a dataset that is not opened yet.

    ``connection_arguments`` are the arguments that a command needs to reach it, ``timeout`` the
    seconds to wait for each answer.
    """

    uri: str
    checkpoint: str | None
    storage_options: Mapping[str, str] = field(repr=False)
    connection_arguments: str
    timeout: float

    def ask(self, call: Callable[[], T], what: str = "") -> T:
        """Return the answer to a call that only reads, within the time-out.

        :param what: what is asked; by default the dataset.
        :raises StorageUnavailableError: there was none.
        """
        return answer_within(self.timeout, what or self.uri, call)


@dataclass(frozen=True, slots=True)
class Target:
    """One dataset, open at its newest version."""

    port: LanceDatasetPort
    place: Place

    @property
    def uri(self) -> str:
        """Return the dataset's URI."""
        return self.place.uri

    @property
    def look(self) -> dict[str, Any]:
        """Return what every observation and repair of a stream takes."""
        return {
            "checkpoint_location": self.place.checkpoint,
            "storage_options": self.place.storage_options,
            "connection_arguments": self.place.connection_arguments,
        }

    @property
    def places(self) -> str:
        """Return what a look at a stream reads, for a sentence."""
        return f"{self.uri} and the checkpoints of its queries"

    def command(self, *verb: str, query: str = "", options: Sequence[str] = ()) -> str:
        """Return the command that executes a plan for this dataset, or for one of its queries."""
        words = [*verb, self.uri, *([query] if query else []), *options, "--yes"]
        return command_line(*words, connection_arguments=self.place.connection_arguments)

    def queries(self, named: str | None, *, required: bool = True) -> list[str]:
        """Return the named query, or all that the dataset knows.

        :param required: whether there must be one.
        :raises SpecError: it knows none, or not this one; or a checkpoint was given for all of
            them.
        """
        place = self.place
        known = place.ask(
            lambda: find_traces(self.port, place.checkpoint, place.storage_options), self.places
        )
        if named is not None and named not in known:
            have = f"has {', '.join(map(repr, known))}" if known else "has none"
            raise SpecError(
                f"no streaming query {named!r} has left a trace in {self.uri}: it {have}. {_FIRST}"
            )
        if not known and required:
            raise self.unwritten()
        if named is None and len(known) > 1 and self.place.checkpoint:
            raise SpecError(
                f"--checkpoint is one query's, and {self.uri} has {len(known)}; name one of "
                f"{', '.join(map(repr, known))} after the URI"
            )
        return known if named is None else [named]

    def unwritten(self) -> SpecError:
        """Return the error for a dataset without a trace of a query."""
        return SpecError(f"no streaming query has left a trace in {self.uri}. {_FIRST}")

    def query(self, named: str | None) -> str:
        """Return the named query, or the only one.

        :raises SpecError: as :meth:`queries`, or there are several.
        """
        found = self.queries(named)
        if len(found) > 1:
            raise SpecError(
                f"{self.uri} has {len(found)} streaming queries; name one of "
                f"{', '.join(map(repr, found))} after the URI"
            )
        return found[0]


def open_target(arguments: Namespace) -> Target:
    """Open the dataset that was typed.

    :raises SpecError: options contradict, a secret is on the command line, or the connection does
        not exist.
    :raises DatasetNotFoundError: there is no dataset.
    :raises StorageUnavailableError: the store did not answer.
    """
    return open_place(find_place(arguments))


def open_place(place: Place) -> Target:
    """Open the dataset of a place; raises as :func:`open_target`."""
    import lance  # noqa: F401  takes seconds, and is no part of the store's answer

    port = place.ask(lambda: open_dataset(place.uri, place.storage_options))
    return Target(port, place)


def find_place(arguments: Namespace) -> Place:
    """Return where the dataset is; opens a named connection, and no dataset.

    :raises SpecError: as :func:`open_target`.
    """
    if not arguments.timeout:
        raise SpecError("--timeout must be more than 0")
    checkpoint = getattr(arguments, "checkpoint", None)
    if checkpoint is not None and not checkpoint.strip():
        raise SpecError(f"--checkpoint must name a place, got {shown(checkpoint)}")
    if arguments.conn_id is None:
        options = _options(arguments)
        return Place(
            _absolute(arguments.uri),
            _absolute(checkpoint) if checkpoint else None,
            options,
            _connection_arguments(arguments),
            arguments.timeout,
        )
    if arguments.storage_option or arguments.storage_options_file:
        raise SpecError("--conn-id brings its own storage options: leave the others out")
    hook = hook_class()(arguments.conn_id)
    # Airflow and its secrets backends may print; stdout is for the result.
    with redirect_stdout(sys.stderr):
        return Place(
            hook.resolve(arguments.uri),
            hook.resolve(checkpoint) if checkpoint else None,
            hook.storage_options,
            _connection_arguments(arguments),
            arguments.timeout,
        )


def hook_class(option: str = "--conn-id") -> type[LanceHook]:
    """Return the hook that reads connections from Airflow's database too.

    :param option: what was typed that needs it.
    :raises SpecError: Airflow cannot be imported.
    """
    try:
        with redirect_stdout(sys.stderr):
            # The SDK's own class asks no database outside of a task.
            from airflow.models.connection import Connection

            from airflow_provider_lance.hooks.lance import LanceHook
    except ImportError as error:
        raise SpecError(
            f"{option} needs Airflow, which cannot be imported here ({error}): install it, or "
            f"leave {option} out and use an absolute URI with --storage-options-file"
        ) from error

    class Hook(LanceHook):
        """Reads Airflow's database too, as `airflow connections` does; a task may not."""

        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return Connection.get_connection_from_secrets(conn_id)

    return Hook


def _absolute(place: str) -> str:
    """Return an absolute place unchanged, or a relative path from the working directory."""
    if not place.strip():
        raise SpecError(f"a place must not be empty, got {shown(place)}")
    try:
        return location(place if _NAMES_SCHEME.match(place) else os.path.abspath(place))
    except ValueError as error:
        raise SpecError(f"a place must be {error}, got {shown(place)}") from None


def _options(arguments: Namespace) -> dict[str, str]:
    options = _from_file(arguments.storage_options_file)
    for name, value in arguments.storage_option or ():
        if (_SECRET.search(name) and name.lower() not in _HARMLESS) or _PASSWORD.search(value):
            raise SpecError(
                f"storage option {name!r} looks like a secret, and every user of this machine can "
                "read a command line: put it into a file for --storage-options-file, into the "
                "environment (AWS_ACCESS_KEY_ID and the like), or into a connection"
            )
        options[name] = value
    return options


def _from_file(path: str | None) -> dict[str, str]:
    """Read storage options; error messages never quote the file."""
    if path is None:
        return {}
    try:
        document = json_value(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"--storage-options-file {path}: {error.strerror or error}") from error
    except ValueError:
        raise SpecError(f"--storage-options-file {path}: not JSON") from None
    try:
        return dict(strings(document))
    except ValueError:
        raise SpecError(
            f"--storage-options-file {path}: expected one JSON object of texts"
        ) from None


def _connection_arguments(arguments: Namespace) -> str:
    words: Sequence[str] = [
        *(["--conn-id", arguments.conn_id] if arguments.conn_id else []),
        *(
            word
            for name, value in arguments.storage_option or ()
            for word in ("--storage-option", f"{name}={value}")
        ),
        *(
            ["--storage-options-file", os.path.abspath(arguments.storage_options_file)]
            if arguments.storage_options_file
            else []
        ),
    ]
    return shlex.join(words)
