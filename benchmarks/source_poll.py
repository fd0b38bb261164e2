"""E7, polls: what the Lance source costs while nothing comes, and for one append, as versions grow.

One append a version, never compacted, then the same dataset after maintenance. The reader is the
one that Spark asks; a poll is all that it does for one trigger, with what the progress shows of the
query's lag. The sizes take turns. Requests are counted by a proxy before an S3 server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import lance
from lance.fragment import write_fragments

from airflow_provider_lance.maintenance.cleanup import Retention, clean_up
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.port import Append
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.reader import SourceReader
from airflow_provider_lance.source.slices import read_slices
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import percentile, timed
from benchmarks.harness.plots import Bars, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA, rows
from benchmarks.harness.turns import by_turns
from benchmarks.requests import Counts, Store
from tests.support.proxy import Proxy
from tests.support.s3 import s3_server

NAME, TITLE = "E7", "Polls of the Lance source"

FEW = 100
ROWS = 10
LIMIT = 1.5
"""What is claimed: a poll at many versions takes at most so many times that at few."""
S3_VERSIONS = 100
REPEATS = 10


@dataclass
class _Query:
    """One query's reader, and its position."""

    uri: str
    storage: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = SourceOptions.parse({"path": self.uri})
        self.columns = SourceColumns.of(open_dataset(self.uri, self.storage))
        self.reader = SourceReader(options, self.columns, self.storage)
        self.position = self.reader.newest()

    def poll(self) -> SourceOffset:
        """Ask for the end of the next epoch, and for what Spark's progress shows."""
        end = self.reader.latest(self.position)
        self.reader.seen()
        self.reader.lag(end)
        return end

    def epoch(self) -> None:
        """Poll, and read what has come."""
        end = self.poll()
        slices = self.reader.plan(self.position, end)
        names = self.columns.names
        read = sum(each.num_rows for _, each in read_slices(self.uri, self.storage, slices, names))
        assert read == ROWS, read
        self.position = end


def run(bench: Bench) -> Sheet:
    many = bench.scale.pick(quick=1_000, full=10_000)
    polls = bench.scale.pick(quick=20, full=100)
    sheet = Sheet(NAME, TITLE, {"versions": [FEW, many], "polls": polls, "rows": ROWS})
    with progress(TITLE, 2 * 2 * (polls + 1) + 3) as advance:
        made = {number: _appended(f"{bench.work}/{number}.lance", number) for number in (FEW, many)}
        advance("history")
        seen = {"before": _polls(made, polls, advance)}
        for port in made.values():
            compact(port, {})
            clean_up(port, Retention(older_than=0, keep_active=0))
        advance("maintenance")
        seen["after"] = _polls(made, polls, advance)
        idle, epoch = _requests()
        advance("requests")
    for moment, times in seen.items():
        for number, each in times.items():
            for name, share in (("p50", 0.5), ("p95", 0.95)):
                value = percentile(each, share)
                sheet.add(f"poll_{name}", value, "ms", maintenance=moment, versions=number)
        value = percentile(times[many], 0.5) / percentile(times[FEW], 0.5)
        sheet.ratio("poll", of=f"{many}", to=f"{FEW}", value=value, maintenance=moment)
        if moment == "after":
            claim = f"idle poll, {many:,} versions beside {FEW}, after maintenance"
            sheet.claim(claim, value=value, limit=LIMIT)
    for name, counts in (("idle poll", idle), ("epoch of one append", epoch)):
        for kind, number in sorted(counts.items()):
            sheet.add("requests", number, "requests", of=name, kind=kind)
        sheet.add("requests", sum(counts.values()), "requests", of=name, kind="all")
    bars = {
        f"{moment} maintenance": {f"{n:,} versions": percentile(t, 0.5) for n, t in times.items()}
        for moment, times in seen.items()
    }
    sheet.plots.append(draw(bench.out, "e7-polls", Bars(bars, "an idle poll, p50", "ms")))
    return sheet


def _appended(uri: str, versions: int) -> LanceDatasetPort:
    """Make a dataset of so many versions, each but the first an append."""
    port = LanceDatasetPort(lance.write_dataset(SCHEMA.empty_table(), uri))
    for number in range(versions - 1):
        port = _append(port, number)
    return port


def _polls(
    made: dict[int, LanceDatasetPort], polls: int, advance: Callable[[str], None]
) -> dict[int, list[float]]:
    queries = {str(number): _Query(port.uri) for number, port in made.items()}

    def turn(name: str, _: int) -> float:
        return timed(queries[name].poll)

    times = by_turns({name: partial(turn, name) for name in queries}, polls + 1, advance)
    return {int(name): each[1:] for name, each in times.items()}


def _requests() -> tuple[Counts, Counts]:
    """Return the requests of an idle poll, and of an epoch of one append, in the mean of ten."""
    with s3_server() as server, Proxy(server.endpoint) as proxy:
        store, uri, straight = Store(server, proxy), server.uri("source.lance"), server.options()
        port = LanceDatasetPort(
            lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=straight)
        )
        for number in range(S3_VERSIONS - 1):
            port = _append(port, number)
        query = _Query(uri, store.storage)
        query.poll()
        idle = store.count(lambda: [query.poll() for _ in range(REPEATS)], REPEATS)
        epochs: Counter[str] = Counter()
        for number in range(REPEATS):
            port = _append(port, S3_VERSIONS + number)
            epochs.update(store.count(query.epoch, REPEATS))
    return idle, epochs


def _append(port: LanceDatasetPort, number: int) -> LanceDatasetPort:
    return port.commit(Append(write_fragments(rows(number * ROWS, ROWS), port.dataset)))
