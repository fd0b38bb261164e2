"""``lance-stream doctor``: whether this machine and a dataset's store can run a stream."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from uuid import uuid4

from airflow_provider_lance.cli.doctor_connectors import diagnose_connectors
from airflow_provider_lance.cli.doctor_machine import (
    Diagnosis,
    Level,
    diagnose_packages,
    diagnose_spark,
)
from airflow_provider_lance.cli.output import Exit, Output, harmless
from airflow_provider_lance.cli.target import Place, Target, find_place, open_place
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    LanceStreamError,
    SpecError,
    StorageUnavailableError,
    TransientError,
)
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session, open_dataset
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, create_error, is_missing
from airflow_provider_lance.protocol.port import Configure

__all__ = ["run"]

_STYLES = {
    Level.OK: "green",
    Level.NOTE: "",
    Level.WARNING: "yellow",
    Level.ERROR: "bold red",
    Level.UNKNOWN: "magenta",
}
_KEY = "lance-stream.probe"
_ROUNDS, _WRITERS = 5, 2


def run(arguments: Namespace, output: Output) -> int:
    """Check everything, and say what to do about each problem."""
    if arguments.uri is None and (arguments.write_probe or arguments.conn_id):
        raise SpecError("--conn-id and --write-probe need a dataset: give its URI, too")
    found = [*diagnose_packages(), *diagnose_spark()]
    found += diagnose_connectors(arguments.packages or "")
    if arguments.uri is not None:
        found += _diagnose_store(arguments)
    levels = {each.level for each in found}
    status = Exit.UNKNOWN if Level.UNKNOWN in levels else Exit.HEALTHY
    if Level.ERROR in levels:
        status = Exit.UNHEALTHY
    if output.json:
        diagnoses = [each.to_json() for each in found]
        output.document({"healthy": status is Exit.HEALTHY, "diagnoses": diagnoses})
    else:
        _show(found, output)
    return status


def _show(found: list[Diagnosis], output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name in ("level", "name", "seen"):
        table.add_column(overflow="fold", no_wrap=name != "seen")
    for each in found:
        seen = Text("\n".join(map(harmless, filter(None, (each.seen, each.advice)))))
        table.add_row(Text(each.level.value, _STYLES[each.level]), Text(harmless(each.name)), seen)
    output.show(table)


def _diagnose_store(arguments: Namespace) -> Iterator[Diagnosis]:
    """Check the connection, the dataset and the checkpoints; try a commit if requested."""
    try:
        place = find_place(arguments)
    except LanceStreamError as error:
        yield _failed("connection" if arguments.conn_id else "URI", error)
        return
    if arguments.conn_id:
        yield Diagnosis("connection", Level.OK, f"{arguments.conn_id!r} leads to {place.uri}")
    yield from _dataset(place, arguments.query_id)
    name = "conditional writes"
    if arguments.write_probe:
        yield _try_commits(name, place)
    else:
        advice = "--write-probe tries it with a small dataset beside this one, and removes it"
        yield Diagnosis(name, Level.NOTE, "not tried", advice)


def _dataset(place: Place, named: str | None) -> Iterator[Diagnosis]:
    try:
        target = open_place(place)
    except DatasetNotFoundError as error:
        if error.__cause__ is None or not is_missing(error.__cause__):  # but the whole bucket
            yield _failed("dataset", error)
            return
        advice = "a stream with createIfMissing=true makes it; otherwise create it, or correct URI"
        yield Diagnosis("dataset", Level.NOTE, f"there is none at {place.uri} yet", advice)
        return
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
    if seen.id is None and owner is None:
        advice = "the first start creates it"
        return Diagnosis(name, Level.NOTE, f"{location}: nothing is there yet", advice)
    if seen.id is None:
        advice = "is it on another machine, or not created yet? --checkpoint names another place"
        return Diagnosis(name, Level.WARNING, f"{location}: nothing is there", advice)
    found = f"{location}: id {seen.id}, planned {seen.planned}, committed {seen.committed}"
    recorded = owner.driver.checkpoint_id if owner else seen.id
    if recorded != seen.id:
        advice = f"the dataset has recorded {recorded}; see lance-stream check"
        return Diagnosis(name, Level.ERROR, found, advice)
    return Diagnosis(name, Level.OK, found)


def _failed(name: str, error: LanceStreamError) -> Diagnosis:
    level = Level.UNKNOWN if isinstance(error, TransientError) else Level.ERROR
    return Diagnosis(name, level, str(error))


def _try_commits(name: str, place: Place) -> Diagnosis:
    """Create a dataset with a random name beside the URI, commit to it at once, and remove it."""
    uri = f"{place.uri.rstrip('/')}.probe-{uuid4().hex}"
    try:
        files = open_files(uri, place.storage_options)  # do not create what cannot be removed
    except LanceStreamError as error:
        return _failed(name, error)
    try:
        found = _race(name, uri, place.storage_options)
    except LanceStreamError as error:
        found = _failed(name, error)
    left = _clean_up(files, uri)
    if not left:
        return found
    level = Level.WARNING if found.level is Level.OK else found.level
    return replace(found, level=level, advice="; ".join(filter(None, (found.advice, left))))


def _race(name: str, uri: str, storage_options: Mapping[str, str]) -> Diagnosis:
    port = _make(uri, storage_options)
    for number in range(_ROUNDS):
        port, broken = _round(port, uri, storage_options, number)
        if broken:
            advice = "two drivers could both own a query here: use a store with conditional PUT"
            return Diagnosis(name, Level.ERROR, broken, advice)
    seen = f"of two commits at once exactly one landed, {_ROUNDS} times out of {_ROUNDS}"
    return Diagnosis(name, Level.OK, seen)


def _clean_up(files: ArrowFiles, uri: str) -> str:
    """Remove the probe's dataset; return what is left to do, empty if nothing of it is there."""
    why = ""
    try:
        files.remove("")
    except StorageUnavailableError as error:
        why = f" ({error})"
    try:
        left = len(files.paths())  # a store may answer yes and keep some
    except StorageUnavailableError as error:
        return f"whether {uri} is gone cannot be seen ({error}): look, and remove it by hand"
    return f"{left} files of the probe are still there{why}: remove {uri} by hand" if left else ""


def _make(uri: str, storage_options: Mapping[str, str]) -> LanceDatasetPort:
    import lance
    import pyarrow

    try:
        lance.write_dataset(
            pyarrow.table({"probe": pyarrow.array([], pyarrow.int64())}),
            uri,
            storage_options=dict(storage_options) or None,
            session=lance_session(),
        )
    except LANCE_ERRORS as error:
        raise create_error(uri, error) from error
    return open_dataset(uri, storage_options)


def _round(
    port: LanceDatasetPort, uri: str, storage_options: Mapping[str, str], number: int
) -> tuple[LanceDatasetPort, str]:
    """Let all writers commit the same key at once, each from its own handle.

    :returns: the newest version, and what is wrong, empty if nothing is.
    """
    handles = [open_dataset(uri, storage_options, version=port.version) for _ in range(_WRITERS)]
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
        return port, f"a commit neither landed nor was refused: {errors[0]}"
    newest = open_dataset(uri, storage_options)
    winners = [f"{number}/{writer}" for writer, landed in enumerate(outcomes) if landed]
    if len(winners) != 1:
        return port, f"{len(winners)} of {_WRITERS} commits of version {port.version} landed"
    if newest.config.get(_KEY) != winners[0] or newest.version != port.version + 1:
        return port, f"the commit that landed on version {port.version} is not what is there now"
    return newest, ""
