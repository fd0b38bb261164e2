"""The driver's part in writing an epoch: combine what the tasks sent, or write all of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.row_ids import KeyLookup, KeyPositions, known_first
from airflow_provider_lance.spark.aside import Aside
from airflow_provider_lance.spark.casts import with_negative_zeros
from airflow_provider_lance.spark.ordered_task import OrderedTask
from airflow_provider_lance.spark.sequencing import Truncation
from airflow_provider_lance.spark.writer import WriteTask

__all__ = ["CollectedFragments", "gather", "gather_rows"]


@dataclass(frozen=True)
class CollectedFragments:
    """A written epoch: its fragments, and an upsert's keys and lookup as the port takes them.

    ``rows`` are those that land; ``checks`` has those that do not. ``aside`` are rows for the
    quarantine, ``aside_fragments`` such rows that tasks have written there. ``tombstones`` are the
    keys to remember as deleted, ``compared_at`` the version with which records were compared.
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
    tombstones: pa.Table | None = None
    compared_at: int | None = None

    def after(self, cut: Truncation, checks: RowChecks) -> CollectedFragments:
        """Return the same with what the epoch's truncates do; their records are in no part yet."""
        truncated = cut.sequence.num_rows
        assert self.keys is not None
        assert self.tombstones is not None
        keys = self.keys
        if cut.removed.num_rows:
            others = cut.removed.group_by(keys.column_names).aggregate([]).cast(keys.schema)
            if keys.num_rows:
                others = others.filter(KeyPositions(keys).of(others).is_null())
            keys = pa.concat_tables([keys, others])
        return replace(
            self,
            keys=keys,
            rows=self.rows + truncated,
            deletes=self.deletes + truncated,
            checks=self.checks + checks,
            tombstones=pa.concat_tables([self.tombstones, cut.tombstones]),
        )


def gather(
    messages: Iterable[Any], task: WriteTask, dataset: Any, tombstones: Any = None
) -> CollectedFragments:
    """Combine the tasks' messages on the driver; write the rows that small partitions sent.

    :param tombstones: a handle of the tombstones, if records have an order and there are any.
    :raises RowsRefusedError: a value does not fit, or a merge key is null or duplicated.
    """
    fragments: list[Any] = []
    lookup: KeyLookup | None = None
    added: list[pa.Table] = []
    doomed: list[pa.Table] = []
    small: list[pa.Table] = []
    graves: list[pa.Table] = []
    rows = deletes = size = 0
    checks = RowChecks()
    aside: list[pa.Table] = []
    aside_fragments: list[Any] = []
    for message in messages:
        if message.refusal is not None:
            raise RowsRefusedError(message.refusal)
        if message.data is not None:
            small.append(from_ipc(message.data))
            continue
        rows += message.rows
        checks += RowChecks.decode(json.loads(message.checks))
        aside += [] if message.aside is None else [from_ipc(message.aside)]
        aside_fragments += _fragments(message.aside_fragments)
        deletes, size = deletes + message.deletes, size + message.bytes
        fragments += _fragments(message.fragments)
        if message.keys is not None:
            keys = from_ipc(message.keys)
            added.append(keys.slice(0, message.rows - message.deletes))
            doomed.append(keys.slice(message.rows - message.deletes))
        if message.tombstones is not None:
            graves.append(from_ipc(message.tombstones))
    if small:
        rest = _write_here(pa.concat_tables(small), task, dataset, tombstones)
        fragments += rest.fragments
        rows, deletes, size = rows + rest.rows, deletes + rest.deletes, size + rest.bytes
        checks += rest.checks
        aside += [] if rest.aside is None else [rest.aside]
        if rest.keys is not None:
            added.append(rest.keys)  # no rows of fragments follow, so its deletes may stand there
        if rest.tombstones is not None:
            graves.append(rest.tombstones)
        lookup = rest.lookup
    all_keys = pa.concat_tables(added + doomed) if added else None
    written = CollectedFragments(
        fragments,
        _usable(all_keys, task),
        rows,
        deletes,
        size,
        lookup,
        checks,
        pa.concat_tables(aside) if aside else None,
        aside_fragments,
    )
    if not isinstance(task, OrderedTask):
        return written
    none = task.comparison.tombstones_of(task.schema).empty_table()
    no_keys = task.schema.empty_table().select(task.comparison.row_keys)
    return replace(
        written,
        keys=no_keys if written.keys is None else written.keys,
        tombstones=pa.concat_tables([none, *graves]),
        compared_at=task.comparison.version,
    )


def gather_rows(
    rows: pa.Table, task: WriteTask, dataset: Any, tombstones: Any = None
) -> CollectedFragments:
    """Write an epoch whose rows are all on the driver.

    :param tombstones: as for :func:`gather`.
    :raises RowsRefusedError: as :func:`gather` does.
    """
    written = _write_here(rows, task, dataset, tombstones)
    return replace(written, keys=_usable(written.keys, task))


def _write_here(
    rows: pa.Table, task: WriteTask, dataset: Any, tombstones: Any
) -> CollectedFragments:
    if isinstance(task, OrderedTask):
        found = task.resolve(rows, dataset, tombstones)
        added = found.added
        return CollectedFragments(
            fragments=task.write(added.to_reader(), dataset) if added.num_rows else [],
            keys=found.keys,
            rows=added.num_rows + found.deletes,
            deletes=found.deletes,
            bytes=added.nbytes,
            lookup=found.lookup,
            checks=found.checks,
            aside=_aside(found.aside, task),
            tombstones=found.tombstones,
            compared_at=task.comparison.version,
        )
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
    return CollectedFragments(
        fragments,
        keys,
        sifted.rows.num_rows,
        deletes,
        added.nbytes,
        lookup,
        sifted.checks,
        _aside(sifted.aside, task),
    )


def _fragments(text: str) -> list[Any]:
    from lance.fragment import FragmentMetadata

    return [FragmentMetadata.from_json(json.dumps(each)) for each in json.loads(text)]


def from_ipc(content: bytes) -> pa.Table:
    """Return the table of an Arrow stream."""
    return pa.ipc.open_stream(content).read_all()


def _aside(found: Sequence[Aside], task: WriteTask) -> pa.Table | None:
    """Return rows for the quarantine as they are written there."""
    tables = [each.of(task.sieve.origin) for each in found if task.sieve.origin]
    return pa.concat_tables(tables) if tables else None


def _usable(keys: pa.Table | None, task: WriteTask) -> pa.Table | None:
    if keys is None:
        return None
    if isinstance(task, OrderedTask):  # each is there once, and none is null
        return with_negative_zeros(keys)
    names = keys.column_names
    counts = keys.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    if repeated.num_rows:
        example = {name: repeated.column(name)[0].as_py() for name in names}
        raise RowsRefusedError(
            f"{repeated.num_rows} merge keys are in this epoch more than once, for example "
            f"{example}: the sink cannot know which row is the newest. Set sequenceBy to the "
            "columns that order the records of a key, for example a log position; or reduce them "
            "in sql with max_by(struct(*), …) GROUP BY the keys. Nothing of this epoch was "
            "committed"
        )
    return with_negative_zeros(keys)
