"""The doctor's checks of a dataset, its checkpoints, and their store."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from uuid import uuid4

from airflow_provider_lance.cli.diagnosis import Diagnosis, Level
from airflow_provider_lance.cli.target import Place, Target, find_place
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    LanceStreamError,
    StorageUnavailableError,
    TransientError,
)
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session, open_dataset
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS
from airflow_provider_lance.protocol.port import Configure

__all__ = ["Probe", "diagnose_store", "try_commits"]


def diagnose_store(arguments: Namespace) -> Iterator[Diagnosis]:
    """Check the connection, the dataset and the checkpoints; try a commit if requested."""
    try:
        place = find_place(arguments)
    except LanceStreamError as error:
        yield _failed("connection" if arguments.conn_id else "URI", error)
        return
    if arguments.conn_id:
        yield Diagnosis("connection", Level.OK, f"{arguments.conn_id!r} leads to {place.uri}")
    yield from _dataset(place, arguments.query_id)
    yield _commits(place) if arguments.write_probe else _not_tried()


def _dataset(place: Place, named: str | None) -> Iterator[Diagnosis]:
    try:
        target = Target(open_dataset(place.uri, place.storage_options), place)
    except LanceStreamError as error:
        yield _failed("dataset", error)
        return
    known = query_ids(target.port.config)
    queries = f"queries: {', '.join(known)}" if known else "no query yet"
    seen = f"{place.uri} opens, version {target.port.version}, {queries}"
    yield Diagnosis("dataset", Level.OK, seen)
    for query in [named] if named else known:
        yield _checkpoint(target, query)


def _checkpoint(target: Target, query: str) -> Diagnosis:
    name = f"checkpoint of {query}"
    try:
        owner = decode_query(target.port.config, query, target.port.version).owner
        location = target.place.checkpoint or (owner.driver.checkpoint_location if owner else "")
        if not location:
            return Diagnosis(name, Level.NOTE, "none is recorded", "name it with --checkpoint")
        seen = read_checkpoint(location, open_files(location, target.place.storage_options))
    except LanceStreamError as error:
        return _failed(name, error)
    if seen.id is None:
        advice = "is it on another machine, or not made yet? --checkpoint names another place"
        return Diagnosis(name, Level.WARNING, f"{location}: nothing is there", advice)
    told = f"{location}: id {seen.id}, planned {seen.planned}, committed {seen.committed}"
    recorded = owner.driver.checkpoint_id if owner else seen.id
    if recorded != seen.id:
        advice = f"the dataset has recorded {recorded}; see lance-stream check"
        return Diagnosis(name, Level.ERROR, told, advice)
    return Diagnosis(name, Level.OK, told)


def _commits(place: Place) -> Diagnosis:
    name = "conditional writes"
    try:
        probe = try_commits(place.uri, place.storage_options)
    except LanceStreamError as error:
        return _failed(name, error)
    left = f"; remove {probe.left} by hand" if probe.left else ""
    if probe.broken:
        advice = f"two drivers could both own a query here: use a store with conditional PUT{left}"
        return Diagnosis(name, Level.ERROR, probe.broken, advice)
    seen = f"of two commits at once exactly one landed, {probe.rounds} times out of {probe.rounds}"
    return Diagnosis(name, Level.WARNING if left else Level.OK, seen, left.removeprefix("; "))


def _not_tried() -> Diagnosis:
    advice = "--write-probe tries it, with a small dataset beside this one that is removed again"
    return Diagnosis("conditional writes", Level.NOTE, "not tried", advice)


def _failed(name: str, error: LanceStreamError) -> Diagnosis:
    level = Level.UNKNOWN if isinstance(error, TransientError) else Level.ERROR
    return Diagnosis(name, level, str(error))


_KEY = "lance-stream.probe"
_ROUNDS, _WRITERS = 5, 2


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of the rounds. ``broken`` says what went wrong, empty if nothing did.

    ``left`` is the location of the small dataset if it could not be removed.
    """

    uri: str
    rounds: int = 0
    broken: str = ""
    left: str = ""


def try_commits(uri: str, storage_options: Mapping[str, str]) -> Probe:
    """Create a dataset with a random name beside ``uri``, commit to it at once, and remove it.

    :raises StorageUnavailableError: the store did not let the dataset be created.
    :raises SpecError: pyarrow does not serve the store, so nothing could be removed again.
    """
    place = f"{uri.rstrip('/')}.probe-{uuid4().hex}"
    files = open_files(place, storage_options)  # do not create what cannot be removed
    port = _make(place, storage_options)
    rounds, broken = 0, ""
    try:
        for rounds in range(1, _ROUNDS + 1):
            port, broken = _round(port, place, storage_options, rounds)
            if broken:
                break
    finally:
        left = _remove(files)
    return Probe(place, rounds, broken, place if left else "")


def _make(place: str, storage_options: Mapping[str, str]) -> LanceDatasetPort:
    import lance
    import pyarrow

    try:
        nothing = pyarrow.table({"probe": pyarrow.array([], pyarrow.int64())})
        lance.write_dataset(
            nothing,
            place,
            storage_options=dict(storage_options) or None,
            session=lance_session(),
        )
    except LANCE_ERRORS as error:
        first = str(error).splitlines()[0]
        raise StorageUnavailableError(f"cannot make {place}: {first}") from error
    return open_dataset(place, storage_options)


def _round(
    port: LanceDatasetPort, place: str, storage_options: Mapping[str, str], number: int
) -> tuple[LanceDatasetPort, str]:
    """Let all writers commit the same key at once, each from its own handle."""
    handles = [open_dataset(place, storage_options, version=port.version) for _ in range(_WRITERS)]
    start = Barrier(_WRITERS)

    def write(writer: int) -> bool | LanceStreamError:
        start.wait()
        try:
            handles[writer].commit(Configure({_KEY: f"{number}/{writer}"}))
        except CommitPreemptedError:
            return False
        except LanceStreamError as error:
            return error
        return True

    with ThreadPoolExecutor(_WRITERS) as pool:
        outcomes = list(pool.map(write, range(_WRITERS)))
    if errors := [each for each in outcomes if isinstance(each, LanceStreamError)]:
        return port, f"a commit did not end in landing or refusal: {errors[0]}"
    newest = open_dataset(place, storage_options)
    winners = [f"{number}/{writer}" for writer, landed in enumerate(outcomes) if landed]
    if len(winners) != 1:
        return port, f"{len(winners)} of {_WRITERS} commits of version {port.version} landed"
    if newest.config.get(_KEY) != winners[0] or newest.version != port.version + 1:
        return port, f"the commit that landed on version {port.version} is not what is there now"
    return newest, ""


def _remove(files: ArrowFiles) -> bool:
    """Remove the dataset; return whether something is left."""
    try:
        files.remove("")
    except StorageUnavailableError:
        return True
    return False
