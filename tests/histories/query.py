"""A streaming query without Spark: it logs ends of epochs, dies, and repeats what it planned."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.source.reader import SourceReader
from airflow_provider_lance.source.slices import ChangeType, Slice, divide, read_slices
from tests.histories.writer import SCHEMA, Change

Rows = list[tuple[int, Change]]
"""The version that changed each row, and how; in the order in which they are read."""

_UNITS_AT_LEAST = 2
"""One updated row has two images."""


class Query:
    """Reads a dataset as Spark does: `committed` and `planned` are what its logs hold."""

    def __init__(self, options: SourceOptions, random: Random) -> None:
        self.options, self._random = options, random
        self.committed: str | None = None
        self.planned: str | None = None
        self.begun: SourceOffset | None = None
        """Where reading began, as the end of epoch 0 says."""
        self.rows: Rows = []
        """What the committed epochs have read."""
        self.epochs = 0
        self.replays = 0
        self._attempt: Rows | None = None
        self._times: dict[int, int] = {}
        self._start()

    def _start(self) -> None:
        port = open_dataset(self.options.path)
        self._reader = SourceReader(self.options, SourceColumns.of(port))

    @property
    def position(self) -> SourceOffset | None:
        """Return up to where epochs are committed."""
        return self.committed and SourceOffset.from_json(json.loads(self.committed))

    @property
    def oldest_needed(self) -> int:
        """Return the oldest version that cleanup must keep."""
        if self.position:
            return self.position.oldest_needed
        if self.planned:
            return SourceOffset.from_json(json.loads(self.planned)).oldest_needed
        start = self.options.starting_version
        return start - 1 if isinstance(start, int) else self._reader.newest().version

    def epoch(self) -> bool:
        """Run one epoch, or repeat the planned one; return whether there was one."""
        if self._random.random() < 0.2:
            self._start()
        if self.planned is None:
            planned = self._log(self._reader.latest(self._from(), last=None))
            if planned == self.committed:
                return False
            self.planned = planned
            if self._random.random() < 0.2:
                return True  # dies between the plan and the first read
        end = SourceOffset.from_json(json.loads(self.planned))
        rows = self._read(self._from(), end)
        if self._attempt is not None:
            assert rows == self._attempt, f"epoch {self.epochs} was repeated with other rows"
            self.replays += 1
        self._attempt = rows
        if self._random.random() < 0.2:
            return True  # dies before Spark logs the commit
        if self.committed is None:
            self.begun = end
        self.rows += rows
        self.committed, self.planned, self._attempt = self.planned, None, None
        self.epochs += 1
        return True

    def drain(self, most: int) -> None:
        """Run epochs until nothing is new, at most so many."""
        for _ in range(most):
            if not self.epoch():
                return

    def finish(self) -> None:
        """Run epochs until nothing is new."""
        while self.epoch():
            pass

    def found(self) -> dict[int, Counter[Change]]:
        """Return the rows that were read, by the version that changed them."""
        found: dict[int, Counter[Change]] = {}
        for version, change in self.rows:
            found.setdefault(version, Counter())[change] += 1
        return found

    @staticmethod
    def _log(offset: SourceOffset) -> str:
        return json.dumps(offset.to_json())

    def _from(self) -> SourceOffset:
        return self.position or NOT_BEGUN

    def _read(self, start: SourceOffset, end: SourceOffset) -> Rows:
        slices = self._reader.plan(start, end)
        self._check_limits(slices)
        versions = [each.commit_version for each in slices]
        assert versions == sorted(versions)
        assert all(each.commit_timestamp == self._time(each.commit_version) for each in slices)
        found: Rows = []
        tasks = divide(slices, self._random.choice([100, 10_000]), self._random.choice([4, 50]))
        for task in tasks:
            for part, batch in read_slices(self.options.path, None, task, SCHEMA.names):
                columns = [batch[name].to_pylist() for name in SCHEMA.names]
                for row in zip(*columns, strict=True):
                    found.append((part.commit_version, (part.change.value, row)))
        assert len(found) == sum(each.rows for each in slices)
        return sorted(found)

    def _time(self, version: int) -> int:
        if version not in self._times:
            self._times[version] = commit_time(open_dataset(self.options.path, version=version))
        return self._times[version]

    def _check_limits(self, slices: list[Slice]) -> None:
        options = self.options
        rows = sum(each.rows for each in slices)
        assert rows <= max(options.max_rows, _UNITS_AT_LEAST), (rows, options.max_rows)
        size = sum(each.size for each in slices)
        posts = sum(each.rows for each in slices if each.change is ChangeType.UPDATE_POSTIMAGE)
        assert options.max_bytes is None or size <= options.max_bytes or rows - posts == 1
        assert len({each.commit_version for each in slices}) <= options.max_versions
