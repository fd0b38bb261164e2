"""A random writer of one dataset, and what each of its versions changed: told from its rows only.

Every row has a key that no other row has, and a value that no row had before. So the rows of two
versions say by themselves which keys were inserted, updated and deleted.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import lance
import pyarrow as pa

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])

Row = tuple[int, int, str | None]
Change = tuple[str, Row]

_OPERATIONS = {
    "append": 5,
    "append nothing": 1,
    "append late": 2,
    "upsert": 5,
    "upsert late": 2,
    "insert by merge": 1,
    "update some columns": 2,
    "update": 3,
    "delete": 3,
    "delete all": 1,
    "overwrite": 1,
    "compact": 4,
    "index": 2,
    "config": 2,
}
_WEIGHTS = list(_OPERATIONS.values())


class Writer:
    """Writes a dataset by random operations; the random numbers decide them all."""

    def __init__(self, folder: Path, random: Random, *, row_ids: bool) -> None:
        self.uri, self._random = str(folder), random
        self._keys, self._values = count(), count()
        self.rows: dict[int, list[Row]] = {}
        """The rows of each version, sorted."""
        self.kinds: dict[int, str] = {}
        """The operation that made each version."""
        self._large = random.random() < 0.1
        """Whether an append has hundreds of rows, of which few are changed."""
        shutil.rmtree(folder, ignore_errors=True)
        lance.write_dataset(
            self._table(self._fresh(random.randint(0, 8))),
            self.uri,
            enable_stable_row_ids=row_ids,
            max_rows_per_file=random.choice([3, 100]),
        )
        self._note("create")

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.uri)

    @property
    def newest(self) -> int:
        return max(self.rows)

    def step(self) -> None:
        """Do one random operation."""
        [name] = self._random.choices(list(_OPERATIONS), _WEIGHTS)
        getattr(self, f"_{name.replace(' ', '_')}")()
        self._note(name)

    def clean_up(self, oldest: int) -> None:
        """Remove all versions below the given one."""
        old = [each["version"] for each in self.dataset.versions() if each["version"] < oldest]
        if old:
            self.dataset.cleanup_old_versions(versions=old)

    def changes(self, version: int) -> Counter[Change]:
        """Return what a version changed, by its rows and those of the version before."""
        if self.kinds[version] == "overwrite":
            found = Counter(("delete", row) for row in self.rows[version - 1])
            return found + Counter(("insert", row) for row in self.rows[version])
        before = {row[0]: row for row in self.rows.get(version - 1, ())}
        after = {row[0]: row for row in self.rows[version]}
        found = Counter(("delete", before[key]) for key in before.keys() - after)
        found += Counter(("insert", after[key]) for key in after.keys() - before)
        for key in before.keys() & after:
            if before[key] != after[key]:
                found[("update_preimage", before[key])] += 1
                found[("update_postimage", after[key])] += 1
        return found

    def snapshot(self, version: int) -> Counter[Change]:
        """Return all rows of a version, as inserted ones."""
        return Counter(("insert", row) for row in self.rows[version])

    def _note(self, kind: str) -> None:
        dataset = self.dataset
        for version in range(max(self.rows, default=0) + 1, dataset.version + 1):
            table = dataset.checkout_version(version).to_table()
            columns = [table[name].to_pylist() for name in SCHEMA.names]
            self.rows[version] = sorted(zip(*columns, strict=True), key=lambda row: row[0])
            self.kinds[version] = kind

    @staticmethod
    def _table(rows: Iterable[Row], names: Iterable[str] = SCHEMA.names) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
        return pa.table(list(columns), SCHEMA).select(list(names))

    def _row(self, key: int) -> Row:
        return key, next(self._values), self._random.choice([None, f"s{key}"])

    def _fresh(self, number: int) -> list[Row]:
        return [self._row(next(self._keys)) for _ in range(number)]

    def _some(self) -> list[int]:
        keys = [row[0] for row in self.rows[self.newest]]
        return self._random.sample(keys, self._random.randint(1, min(len(keys), 6))) if keys else []

    def _where(self) -> str:
        return f"k in ({','.join(map(str, self._some() or [-1]))})"

    def _added(self) -> pa.Table:
        number = 300 if self._large and self._random.random() < 0.5 else 9
        return self._table(self._fresh(self._random.randint(1, number)))

    def _append(self) -> None:
        most = self._random.choice([2, 100])
        lance.write_dataset(self._added(), self.uri, mode="append", max_rows_per_file=most)

    def _append_nothing(self) -> None:
        dataset = self.dataset
        operation = lance.LanceOperation.Append([])
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    def _append_late(self) -> None:
        """Commit an append that was begun before another commit, or before two."""
        dataset = self.dataset
        fragments = lance.fragment.write_fragments(self._added(), self.uri, max_rows_per_file=4)
        for _ in range(self._random.randint(1, 2)):
            self._random.choice([self._append, self._delete, self._config])()
            self._note("delete" if self.dataset.count_rows() < self._count() else "append")
        operation = lance.LanceOperation.Append(fragments)
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
        self._note("append")

    def _count(self) -> int:
        return len(self.rows[self.newest])

    def _merge(self) -> lance.dataset.MergeInsertBuilder:
        return self.dataset.merge_insert("k")

    def _upsert(self) -> None:
        rows = [self._row(key) for key in self._some()] + self._fresh(self._random.randint(0, 4))
        merge = self._merge().when_matched_update_all().when_not_matched_insert_all()
        if rows:
            merge.execute(self._table(rows))

    def _upsert_late(self) -> None:
        """Commit an upsert that was begun before another commit; Lance may refuse it."""
        rows = [self._row(key) for key in self._some()] + self._fresh(self._random.randint(0, 2))
        if not rows:
            return
        merge = self._merge().when_matched_update_all().when_not_matched_insert_all()
        transaction, _ = merge.execute_uncommitted(self._table(rows))
        other = self._random.choice(["append", "delete", "config", "compact"])
        getattr(self, f"_{other}")()
        self._note(other)
        with suppress(OSError):  # a conflict
            lance.LanceDataset.commit(self.dataset, transaction, max_retries=0)

    def _insert_by_merge(self) -> None:
        rows = self._fresh(self._random.randint(1, 4))
        self._merge().when_not_matched_insert_all().execute(self._table(rows))

    def _update_some_columns(self) -> None:
        if rows := [self._row(key) for key in self._some()]:
            self._merge().when_matched_update_all().execute(self._table(rows, ("k", "v")))

    def _update(self) -> None:
        # No value of another row is met: each is larger than a million times those before.
        self.dataset.update({"v": f"v + {next(self._values) * 1_000_000}"}, self._where())

    def _delete(self) -> None:
        self.dataset.delete(self._where())

    def _delete_all(self) -> None:
        if self._random.random() < 0.5:
            self.dataset.delete("true")

    def _overwrite(self) -> None:
        rows = self._table(self._fresh(self._random.randint(0, 5)))
        lance.write_dataset(rows, self.uri, mode="overwrite")

    def _compact(self) -> None:
        self.dataset.optimize.compact_files(
            target_rows_per_fragment=self._random.choice([4, 1000]),
            materialize_deletions_threshold=self._random.choice([0.0, 0.1]),
        )

    def _index(self) -> None:
        if self._count():
            self.dataset.create_scalar_index("k", "BTREE", replace=True)

    def _config(self) -> None:
        self.dataset.update_config({"note": str(next(self._values))})
