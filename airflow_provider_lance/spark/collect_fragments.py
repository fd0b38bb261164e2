"""The driver's part in writing an epoch: combine what the tasks sent, or write all of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.row_ids import KeyLookup, known_first
from airflow_provider_lance.spark.casts import with_negative_zeros
from airflow_provider_lance.spark.writer import WriteTask

__all__ = ["CollectedFragments", "gather", "gather_rows"]


@dataclass(frozen=True)
class CollectedFragments:
    """A written epoch: its fragments, and an upsert's keys and lookup as the port takes them.

    ``rows`` are those that land; ``checks`` has those that do not. ``aside`` are rows for the
    quarantine, ``aside_fragments`` such rows that tasks have written there.
    """

    fragments: list[Any]
    keys: pa.Table | None
    rows: int
    deletes: int
    bytes: int
    lookup: KeyLookup | None = None
    checks: RowChecks = RowChecks()
    aside: pa.Table | None = None
    aside_fragments: list[Any] = field(default_factory=list)


def gather(messages: Iterable[Any], task: WriteTask, dataset: Any) -> CollectedFragments:
    """Combine the tasks' messages on the driver; write the rows that small partitions sent.

    :raises RowsRefusedError: a value does not fit, or a merge key is null or duplicated.
    """
    fragments: list[Any] = []
    lookup: KeyLookup | None = None
    added: list[pa.Table] = []
    doomed: list[pa.Table] = []
    small: list[pa.Table] = []
    rows = deletes = size = 0
    checks = RowChecks()
    aside: list[pa.Table] = []
    aside_fragments: list[Any] = []
    for message in messages:
        if message.refusal is not None:
            raise RowsRefusedError(message.refusal)
        if message.data is not None:
            small.append(_from_ipc(message.data))
            continue
        rows += message.rows
        checks += RowChecks.decode(json.loads(message.checks))
        aside += [] if message.aside is None else [_from_ipc(message.aside)]
        aside_fragments += _fragments(message.aside_fragments)
        deletes, size = deletes + message.deletes, size + message.bytes
        fragments += _fragments(message.fragments)
        if message.keys is not None:
            keys = _from_ipc(message.keys)
            added.append(keys.slice(0, message.rows - message.deletes))
            doomed.append(keys.slice(message.rows - message.deletes))
    if small:
        rest = _write_here(pa.concat_tables(small), task, dataset)
        fragments += rest.fragments
        rows, deletes, size = rows + rest.rows, deletes + rest.deletes, size + rest.bytes
        checks += rest.checks
        aside += [] if rest.aside is None else [rest.aside]
        if rest.keys is not None:
            added.append(rest.keys)  # no rows of fragments follow, so its deletes may stand there
        lookup = rest.lookup
    all_keys = pa.concat_tables(added + doomed) if added else None
    return CollectedFragments(
        fragments,
        _usable(all_keys),
        rows,
        deletes,
        size,
        lookup,
        checks,
        pa.concat_tables(aside) if aside else None,
        aside_fragments,
    )


def gather_rows(rows: pa.Table, task: WriteTask, dataset: Any) -> CollectedFragments:
    """Write an epoch whose rows are all on the driver.

    :raises RowsRefusedError: as :func:`gather` does.
    """
    written = _write_here(rows, task, dataset)
    return replace(written, keys=_usable(written.keys))


def _write_here(rows: pa.Table, task: WriteTask, dataset: Any) -> CollectedFragments:
    added, doomed, sifted = task.divide(rows)
    keys = lookup = None
    if names := list(task.merge_keys):
        others = [] if doomed is None else [doomed]
        keys = pa.concat_tables([added.select(names), *others])
        lookup = task.look_up(keys, dataset) if added.num_rows else None
        if lookup:
            added = known_first(added, lookup)
            keys = pa.concat_tables([added.select(names), *others])
    fragments = task.write(added.to_reader(), dataset) if added.num_rows else []
    deletes = doomed.num_rows if doomed is not None else 0
    aside = [each.of(task.sieve.origin) for each in sifted.aside if task.sieve.origin]
    return CollectedFragments(
        fragments,
        keys,
        sifted.rows.num_rows,
        deletes,
        added.nbytes,
        lookup,
        sifted.checks,
        pa.concat_tables(aside) if aside else None,
    )


def _fragments(text: str) -> list[Any]:
    from lance.fragment import FragmentMetadata

    return [FragmentMetadata.from_json(json.dumps(each)) for each in json.loads(text)]


def _from_ipc(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


def _usable(keys: pa.Table | None) -> pa.Table | None:
    if keys is None:
        return None
    names = keys.column_names
    counts = keys.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    if repeated.num_rows:
        example = {name: repeated.column(name)[0].as_py() for name in names}
        raise RowsRefusedError(
            f"{repeated.num_rows} merge keys are in this epoch more than once, for example "
            f"{example}: the sink cannot know which row is the newest. Reduce them in sql, for "
            "example with max_by(struct(*), …) GROUP BY the keys; nothing of this epoch was "
            "committed"
        )
    return with_negative_zeros(keys)
