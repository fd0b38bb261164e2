"""E5: requests to an S3 server, per epoch and at a driver's start and end, counted by kind.

A proxy before the server counts them. Unlike milliseconds they do not depend on the machine, and
they are what a store asks money and round trips for. All on Lance append to one dataset, one after
the other; it has more versions than the classic design and its successor look back. Delta's
requests grow until its log gets a checkpoint, so that only the mean of 100 epochs is the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import NO_EPOCH, OutputMode
from airflow_provider_lance.protocol.port import Configure
from benchmarks.contestants import FLOOR, OURS, STREAMS, TABLES
from benchmarks.contestants.classic import Classic
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.contestants.successor import Successor
from benchmarks.contestants.words import LOOK_BACK, stamp
from benchmarks.driven import Driven, bare
from benchmarks.harness.bench import Bench
from benchmarks.harness.plots import Bars, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA, add_files, read_files, rows
from tests.support.lance_requests import Kind, Request
from tests.support.proxy import Proxy
from tests.support.s3 import S3Server, s3_server

NAME = "E5"
TITLE = "Requests to an S3 server"

ROWS = 500
VERSIONS = LOOK_BACK + 10
FOLD_EVERY = CommitPolicy().watermark_every
WARM = 2
"""Epochs that are not counted: a start makes them different."""
CLASSIC = "classic"
SLACK = 1.1
"""What is claimed: at most so many times the requests of a bare commit, and the folds."""

Counts = Mapping[str, float]
"""Requests by kind."""


@dataclass(frozen=True)
class Store:
    """A server and the proxy before it."""

    server: S3Server
    proxy: Proxy

    @property
    def storage(self) -> dict[str, str]:
        """Return storage options by which requests are counted."""
        return self.server.options(self.proxy.endpoint)

    def count(self, action: Callable[[], object], over: int = 1) -> Counts:
        """Return the requests of an action by kind, divided by ``over``."""
        first = len(self.proxy.requests)
        action()
        return self.between(first, len(self.proxy.requests), over)

    def between(self, first: int, end: int, over: int) -> Counts:
        """Return a part of the proxy's list by kind, divided by ``over``."""
        found = Counter(_kind(request) for request in self.proxy.requests[first:end])
        return {kind: number / over for kind, number in sorted(found.items())}

    def made(self, uri: str, versions: int = 1) -> str:
        """Make a dataset with one fragment and so many versions, uncounted; return its URI."""
        straight = self.server.options()
        lance.write_dataset(rows(0, 2 * ROWS), uri, storage_options=straight)
        port = open_dataset(uri, straight)
        for number in range(1, versions):
            port = port.commit(Configure({"bench.age": str(number)}))
        return uri


def _kind(request: Request) -> str:
    """Return Lance's kind of request, or the method in other layouts."""
    plain = request.kind in (Kind.LIST, Kind.HEAD, Kind.DELETE)
    return request.kind.value if plain or ".lance/" in request.path else request.method.lower()


def total(counts: Counts) -> float:
    """Return the requests of all kinds."""
    return sum(counts.values())


def run(bench: Bench) -> Sheet:
    pick = bench.scale.pick
    epochs = {  # but for Delta's, more would have the same mean
        OURS: pick(quick=2, full=5) * FOLD_EVERY,
        FLOOR: pick(quick=5, full=10),
        CLASSIC: pick(quick=5, full=10),
        "successor": pick(quick=2, full=5),
        "delta": pick(quick=10, full=100),
        "iceberg": pick(quick=1, full=10),
    }
    spark_epochs = WARM + pick(quick=1, full=2) * FOLD_EVERY
    settings = {
        "rows": ROWS,
        "versions_before": VERSIONS,
        "epochs": epochs,
        "epochs_with_spark": spark_epochs,
        "watermark_every": FOLD_EVERY,
    }
    sheet = Sheet(NAME, TITLE, settings)
    steps = len(epochs) + 5
    with s3_server() as server, Proxy(server.endpoint) as proxy, progress(TITLE, steps) as advance:
        store = Store(server, proxy)
        place = server.uri("aged")
        uri = store.made(lance_uri(place), VERSIONS)
        advance("history")
        appends: dict[str, Counts] = {}
        for name, count in epochs.items():
            appends[name] = _appends(store, name, place, bench.work, count)
            advance(name)
        modes = {"append": {name: appends[name] for name in (OURS, FLOOR)}}
        for mode in (OutputMode.COMPLETE, OutputMode.UPDATE):
            modes[mode.value] = _mode(store, mode)
            advance(mode.value)
        moments = _moments(store, place)
        port = open_dataset(uri, store.storage)
        fold = total(store.count(lambda: port.commit(Configure({"bench.fold": "1"})))) / FOLD_EVERY
        advance("start and end")
        with_spark = _with_spark(store, bench, spark_epochs)
        advance("with Spark")
    _note_appends(sheet, appends)
    _note_modes(sheet, modes, with_spark, fold)
    for moment, each in moments.items():
        for name, counts in each.items():
            _note(sheet, "requests", counts, contestant=name, moment=moment)
    sheet.plots.append(_plot(bench.out, appends, modes, moments))
    return sheet


# ---------------------------------------------------------------------------------------- counting


def _landed(dataset: lance.LanceDataset, query_id: str, epoch_id: int) -> bool:
    """Search as :func:`.words.landed` does, in one call: on a store that spares a request each."""
    wanted = stamp(query_id, epoch_id).items()
    found = dataset.get_transactions(LOOK_BACK)
    return any(wanted <= (each.transaction_properties or {}).items() for each in found if each)


class _Successor(Successor):
    def known(self, epoch_id: int) -> bool:
        return _landed(self.dataset, self.query_id, epoch_id)


class _RestartedClassic(Classic):
    def known(self, epoch_id: int) -> bool:
        return _landed(self.dataset, self.query_id, epoch_id)


def _appends(store: Store, name: str, place: str, work: Path, epochs: int) -> Counts:
    """Count one contestant's epoch in append mode, in the mean of many."""
    storage = store.storage
    if name == "iceberg":
        storage = _iceberg(store, work)
    elif name == "delta":
        storage |= {"conditional_put": "etag"}
    make: Any = _Successor if name == "successor" else TABLES[name]
    table = make(place, SCHEMA, query_id=name, storage=storage)
    return _mean(store, table.epoch, epochs)


def _repeat(epoch: Callable[[pa.Table], None], times: int) -> None:
    for _ in range(times):
        epoch(rows(0, ROWS))


def _iceberg(store: Store, work: Path) -> dict[str, str]:
    """Return the catalog's settings, whose database is on disk: it is no part of the store."""
    known = store.storage
    return {
        "uri": f"sqlite:///{work}/catalog.db",
        "s3.endpoint": store.proxy.endpoint,
        "s3.access-key-id": known["aws_access_key_id"],
        "s3.secret-access-key": known["aws_secret_access_key"],
        "s3.region": known["aws_region"],
    }


def _mode(store: Store, mode: OutputMode) -> dict[str, Counts]:
    """Count ours beside bare Lance in one output mode; an upsert always has the same keys."""
    driver = Driven(store.made(store.server.uri(f"{mode.value}.lance")), store.storage, mode=mode)
    driver.prepare()
    driver.claim()
    alone = bare(store.made(store.server.uri(f"bare-{mode.value}.lance")), store.storage, mode)
    each = {OURS: driver.epoch, FLOOR: alone}
    return {name: _mean(store, epoch, 2 * FOLD_EVERY) for name, epoch in each.items()}


def _mean(store: Store, epoch: Callable[[pa.Table], None], epochs: int) -> Counts:
    _repeat(epoch, WARM)
    return store.count(lambda: _repeat(epoch, epochs), epochs)


def _moments(store: Store, place: str) -> dict[str, dict[str, Counts]]:
    """Count what drivers do beside their epochs; a start includes its first epoch.

    Ours that is killed leaves as many epochs as may be in history only. The classic design's start
    does not depend on how the driver before ended.
    """
    uri = lance_uri(place)
    driver, first = _started(store, uri, NO_EPOCH)
    look, release = store.count(driver.look), store.count(driver.release)
    driver, released = _started(store, uri, driver.next - 1)
    _repeat(driver.epoch, FOLD_EVERY - 2)
    _, killed = _started(store, uri, driver.next - 1)

    def restart() -> None:
        query = "classic, restarted"
        table = _RestartedClassic(place, SCHEMA, query_id=query, storage=store.storage)
        table.epoch(rows(0, ROWS))

    classic = store.count(restart)
    return {
        "first start": {OURS: first},
        "look": {OURS: look},
        "release": {OURS: release},
        "start after release": {OURS: released, CLASSIC: classic},
        "start after kill": {OURS: killed, CLASSIC: classic},
    }


def _started(store: Store, uri: str, done: int) -> tuple[Driven, Counts]:
    """Start a driver; return it after its first epoch, with the requests until then."""
    first = len(store.proxy.requests)
    driver = Driven(uri, store.storage, done=done)
    driver.prepare()
    driver.claim()
    driver.epoch(rows(0, ROWS))
    return driver, store.between(first, len(store.proxy.requests), 1)


def _with_spark(store: Store, bench: Bench, epochs: int) -> Counts:
    """Count an epoch of the sink, without the first two of the run; its checkpoint is on disk."""
    source = bench.work / "source"
    add_files(source, 0, epochs, ROWS)
    folded: list[int] = []

    def on_step(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_FOLDED:
            folded.append(len(store.proxy.requests))

    with STREAMS[OURS](
        read_files(bench.spark(), source),
        store.server.uri("spark"),
        checkpoint=str(bench.work / "checkpoint"),
        storage=store.storage,
        options={"on_step": on_step},
    ) as query:
        query.awaitTermination()
    return store.between(folded[1], folded[-1], len(folded) - 2)


# ------------------------------------------------------------------------------------- the figures


def _note_appends(sheet: Sheet, appends: Mapping[str, Counts]) -> None:
    """Note all contestants in append mode, and set ours beside each."""
    for name, counts in appends.items():
        _note(sheet, "requests_per_epoch", counts, contestant=name, mode="append")
        if name not in (OURS, FLOOR):
            value = total(appends[OURS]) / total(counts)
            sheet.ratio("requests_per_epoch", of=OURS, to=name, value=value, mode="append")
            sheet.claim(f"requests an epoch beside {name}", value=value, limit=1.0)


def _note_modes(
    sheet: Sheet, modes: Mapping[str, Mapping[str, Counts]], with_spark: Counts, fold: float
) -> None:
    """Note ours beside bare Lance in each mode, and with Spark."""
    sheet.add("requests_per_epoch", fold, "requests", contestant=OURS, part="fold")
    for mode, counts in modes.items():
        _beside_floor(sheet, mode, counts[OURS], counts[FLOOR], fold)
        if mode != "append":  # those are among the contestants
            for name, each in counts.items():
                _note(sheet, "requests_per_epoch", each, contestant=name, mode=mode)
    _beside_floor(sheet, "append with Spark", with_spark, modes["append"][FLOOR], fold)
    _note(sheet, "requests_per_epoch", with_spark, contestant=OURS, mode="append with Spark")


def _beside_floor(sheet: Sheet, mode: str, ours: Counts, floor: Counts, fold: float) -> None:
    value, least = total(ours), total(floor)
    sheet.ratio("requests_per_epoch", of=OURS, to=FLOOR, value=value / least, mode=mode)
    sheet.claim(
        f"requests an epoch, {mode}; limit: bare Lance's x {SLACK} and the fold",
        value=value,
        limit=SLACK * least + fold,
    )


def _note(sheet: Sheet, figure: str, counts: Counts, **labels: str) -> None:
    sheet.add(figure, total(counts), "requests", **labels, kind="all")
    for kind, number in counts.items():
        sheet.add(figure, number, "requests", **labels, kind=kind)


def _plot(
    folder: Path,
    appends: Mapping[str, Counts],
    modes: Mapping[str, Mapping[str, Counts]],
    moments: Mapping[str, Mapping[str, Counts]],
) -> str:
    by_mode = {mode: _totals(each) for mode, each in modes.items()}
    starts = {
        moment.replace(" ", "\n", 1): _totals(each)
        for moment, each in moments.items()
        if "start" in moment
    }
    return draw(
        folder,
        "requests",
        Bars(_totals(appends), "an epoch, append", "requests"),
        Bars(by_mode, "an epoch, by output mode", "requests"),
        Bars(starts, "a start", "requests"),
        title="Requests to an S3 server",
    )


def _totals(counts: Mapping[str, Counts]) -> dict[str, float]:
    return {name: total(each) for name, each in counts.items()}
