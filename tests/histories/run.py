"""Histories: a random writer and random queries on one dataset, compared version by version."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from airflow_provider_lance.exceptions import SourceChangedError
from airflow_provider_lance.source.options import SourceOptions
from tests.histories.query import Query
from tests.histories.writer import Change, Writer

_STEPS = 10


@dataclass
class Tally:
    """What became of the histories."""

    histories: int = 0
    versions: int = 0
    epochs: int = 0
    replays: int = 0
    rows: int = 0
    refused: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    wrong: dict[str, str] = field(default_factory=dict)
    """The traceback of each history that went wrong, by its seed."""


def histories(number: int, seed: int, folder: Path) -> Tally:
    """Run so many histories; the seed decides them all."""
    tally = Tally()
    began = time.perf_counter()
    for each in range(number):
        name = f"{seed}-{each}"
        try:
            history(name, folder / "t.lance", tally)
        except Exception:
            tally.wrong[name] = traceback.format_exc()
        tally.histories += 1
    tally.seconds = time.perf_counter() - began
    return tally


def history(name: str, folder: Path, tally: Tally) -> None:
    """Run one history: write, read beside it, clean up what was read, and compare."""
    random = Random(name)
    feed = random.random() < 0.7
    writer = Writer(folder, random, row_ids=feed or random.random() < 0.5)
    for _ in range(random.randint(0, 5)):
        writer.step()
    queries = [
        Query(_options(writer, feed, random), random) for _ in range(random.choice([1, 1, 2]))
    ]
    stopped: dict[int, str] = {}
    for _ in range(_STEPS):
        writer.step()
        for number, query in enumerate(queries):
            try:
                query.drain(random.randint(0, 6))
            except SourceChangedError as error:
                stopped[number] = str(error)
        if random.random() < 0.2 and not stopped:
            writer.clean_up(min(query.oldest_needed for query in queries))
    for number, query in enumerate(queries):
        try:
            query.finish()
        except SourceChangedError as error:
            stopped[number] = str(error)
        if query.options.read_change_feed:
            assert number not in stopped, stopped[number]
            _check_feed(writer, query)
            _replay(writer, query)
        else:
            _check_appends(writer, query, stopped.get(number))
        tally.epochs += query.epochs
        tally.replays += query.replays
        tally.rows += len(query.rows)
    tally.refused += len(stopped)
    tally.versions += writer.newest
    tally.operations.update(writer.kinds.values())


def _options(writer: Writer, feed: bool, random: Random) -> SourceOptions:
    given = {
        "path": writer.uri,
        "maxRowsPerTrigger": str(random.choice([1, 3, 5, 40, 40, 1000])),
        "maxVersionsPerTrigger": str(random.choice([1, 2, 5, 100])),
        "readChangeFeed": str(feed).lower(),
    }
    if random.random() < 0.3:
        given["maxBytesPerTrigger"] = str(random.choice([1, 30, 100, 2000]))
    start = random.choice([None, "1", str(writer.newest), "latest"])
    if start:
        given["startingVersion"] = start
    if not feed:
        given |= random.choice([{}, {"ignoreDeletes": "true"}, {"skipChangeCommits": "true"}])
    return SourceOptions.parse(given)


def _first(writer: Writer, query: Query) -> dict[int, Counter[Change]]:
    """Return what the version in which the query began gives it."""
    begun = query.begun
    assert begun is not None
    if begun.index is None:
        return {}
    if begun.snapshot or writer.kinds[begun.version] == "overwrite":
        return {begun.version: writer.snapshot(begun.version)}
    return {begun.version: writer.changes(begun.version)}


def _check_feed(writer: Writer, query: Query) -> None:
    """Compare what was read of each version with what the writer's rows say of it."""
    wanted = _first(writer, query)
    assert query.begun is not None
    for version in range(query.begun.version + 1, writer.newest + 1):
        wanted[version] = writer.changes(version)
    _compare(query.found(), wanted)


def _replay(writer: Writer, query: Query) -> None:
    """Apply what was read to an empty table, or to that at which the query began."""
    begun = query.begun
    assert begun is not None
    before = begun.version - (begun.index is not None)
    rows = Counter(() if begun.snapshot or not before else writer.rows[before])
    at = 0
    for version in range(begun.version, writer.newest + 1):
        while at < len(query.rows) and query.rows[at][0] <= version:
            (kind, row) = query.rows[at][1]
            rows[row] += -1 if kind in ("delete", "update_preimage") else 1
            at += 1
        assert +rows == Counter(writer.rows[version]), f"the rows of version {version}"
    assert not -rows


def _check_appends(writer: Writer, query: Query, stopped: str | None) -> None:
    """Compare with the rows of appending versions; others are passed over, or stop the query."""
    options = query.options
    wanted = _first(writer, query) if query.begun else {}
    if query.begun is None:  # stopped before its first epoch
        assert stopped is not None
        return
    refused = None
    whole = query.begun.snapshot or query.begun.version == 1
    if query.begun.index is not None and not whole:
        wanted = {}
    first = query.begun.version + (whole or query.begun.index is None)
    for version in range(first, writer.newest + 1):
        changes = writer.changes(version)
        kinds = {kind for kind, _ in changes}
        replaced = writer.kinds[version] == "overwrite"
        deleted = kinds == {"delete"} and not replaced
        if not replaced and kinds <= {"insert"}:
            wanted[version] = changes
        elif not (options.skip_change_commits or (options.ignore_deletes and deleted)):
            refused = version
            break
    if refused is None:
        assert stopped is None
    else:
        assert stopped is not None, f"version {refused} was passed over"
        assert f"version {refused} of {options.path} " in stopped
    _compare(query.found(), wanted)


def _compare(found: dict[int, Counter[Change]], wanted: dict[int, Counter[Change]]) -> None:
    for version in sorted({*found, *wanted}):
        read, there = found.get(version, Counter()), wanted.get(version, Counter())
        assert read == there, (
            f"version {version}: lost {dict(there - read)}, added {dict(read - there)}"
        )
