"""E5: epochs on a store that is 50 ms away, beside a bare Lance append, in turns.

A proxy before an S3 server delays each request. An append takes four, one after the other, whoever
makes it: the data file, a list of the versions, Lance's transaction, the manifest. Every tenth
epoch of ours has a fold, which takes four more. Both write the same rows from a live handle. The
server is versitygw, where Go can build it: its own part of an epoch is smaller than moto's.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from statistics import fmean, median, quantiles
from typing import Any

from airflow_provider_lance.protocol.model import OutputMode
from benchmarks.contestants import FLOOR, OURS
from benchmarks.driven import Driven, bare
from benchmarks.harness.bench import Bench
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import rows
from benchmarks.requests import FOLD_EVERY, ROWS, WARM, Store, total
from tests.support.proxy import Fault, Proxy
from tests.support.s3 import s3_server
from tests.support.versitygw import versitygw

NAME = "E5"
TITLE = "Epochs on a store that is 50 ms away"

LATENCY = 0.05
"""Seconds that each request waits at the proxy."""
SEQUENTIAL = 3
"""Writes of an append of which each needs the one before."""
LIMIT = 1.15
"""What is claimed: a mean epoch, folds included, in multiples of a bare append."""
MOST = 4 + 4 / FOLD_EVERY
"""What is claimed: requests an epoch, those of a bare append and a share of the fold's."""


def run(bench: Bench) -> Sheet:
    epochs = bench.scale.pick(quick=2, full=20) * FOLD_EVERY
    go = shutil.which("go") is not None
    settings = {"rows": ROWS, "latency_ms": LATENCY * 1000, "epochs": epochs}
    sheet = Sheet(NAME, TITLE, settings | {"server": "versitygw" if go else "moto"})
    where = versitygw(bench.work / "remote") if go else s3_server()
    with where as server, Proxy(server.endpoint, latency=LATENCY) as proxy:
        store = Store(server, proxy)
        driver = Driven(store.made(server.uri("ours.lance")), store.storage)
        driver.prepare()
        driver.claim()
        alone = bare(store.made(server.uri("bare.lance")), store.storage, OutputMode.APPEND)
        contestants: dict[str, Callable[[Any], None]] = {OURS: driver.epoch, FLOOR: alone}
        for _ in range(WARM):
            for epoch in contestants.values():
                epoch(rows(0, ROWS))
        proxy.plan = lambda request: Fault.LATENCY
        took: dict[str, list[float]] = {name: [] for name in contestants}
        counts: dict[str, dict[str, float]] = {name: {} for name in contestants}
        with progress(TITLE, epochs) as advance:
            for number in range(epochs):
                for name, epoch in contestants.items():
                    first, began = len(proxy.requests), time.perf_counter()
                    epoch(rows(0, ROWS))
                    took[name].append(1000 * (time.perf_counter() - began))
                    for kind, seen in store.between(first, len(proxy.requests), epochs).items():
                        counts[name][kind] = counts[name].get(kind, 0) + seen
                advance(f"epoch {number + 1}")
    for name, times in took.items():
        _note(sheet, name, times, counts[name])
    for figure, of in (("median", median), ("mean", fmean)):
        value = of(took[OURS]) / of(took[FLOOR])
        sheet.ratio("remote_epoch", of=OURS, to=FLOOR, value=value, at=figure)
        sheet.claim(f"{figure} epoch, 50 ms away, beside bare", value=value, limit=LIMIT)
    sheet.claim("requests an epoch, 50 ms away", value=total(counts[OURS]), limit=MOST)
    return sheet


def _note(sheet: Sheet, name: str, times: list[float], counts: dict[str, float]) -> None:
    tenths = quantiles(times, n=10)
    floor = SEQUENTIAL * LATENCY * 1000
    for figure, value in (
        ("p10", tenths[0]),
        ("p50", median(times)),
        ("p90", tenths[-1]),
        ("mean", fmean(times)),
    ):
        sheet.add("remote_epoch", value, "ms", contestant=name, at=figure)
    sheet.add("beside_sequential_writes", median(times) / floor, "times", contestant=name)
    for kind, number in {**counts, "all": total(counts)}.items():
        sheet.add("remote_requests", number, "requests", contestant=name, kind=kind)
