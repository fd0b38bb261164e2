"""What the doctor sees of a dataset, its checkpoints, and the store below them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from airflow_provider_lance.cli.diagnosis import Diagnosis, Level
from airflow_provider_lance.cli.probe import try_commits
from airflow_provider_lance.cli.target import Place, Target, find_place
from airflow_provider_lance.exceptions import LanceStreamError, TransientError
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files

__all__ = ["diagnose_store"]


def diagnose_store(arguments: Namespace) -> Iterator[Diagnosis]:
    """Look at the connection, the dataset, the queries' checkpoints, and try a commit if asked."""
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
