"""A week at a 10-second trigger with default options: `python -m benchmarks.week`.

All epochs of a week go through the protocol, as fast as they go. After each one the driver's own
upkeep gets its chance, as the sink gives it: `AutoCompaction` with the sink's default options. A
turn ends before the next epoch, as it does within 10 seconds. The clock is simulated, as in
`benchmarks.day`. The last hour is compared with the last hour of the first day. Beside the week
goes a control, a dataset that is made anew every ten minutes of it. It shows how the machine's own
speed changed; commits are compared with the control's at the same moment. `--off` turns the upkeep
off. The datasets are in TMPDIR. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_lance.maintenance.dataset_metrics import measure
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.autocompact import AutoCompaction
from airflow_provider_lance.spec.sink_options import SinkOptions
from benchmarks.day import INTERVAL, Stream
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.memory import held
from benchmarks.harness.sheet import Claim, study

CLAIMED = ("commit_p50_by_control", "fragments", "beside_bytes", "memory_mib")
LIMIT = 1.2
HOUR = 360
"""Epochs."""
DAY, WEEK = 24 * HOUR, 168 * HOUR
CONTROL = 60
AGED = 30
LOOKS = 60
"""Epochs between two looks at what is stored, in the hours that are compared."""


@dataclass(frozen=True)
class Sample:
    """The dataset at one moment; ``beside`` are the stored bytes that no row of it needs."""

    epochs: int
    fragments: int
    versions: int
    stored_bytes: int
    beside_bytes: int
    manifest_bytes: int
    history_bytes: int
    memory_mib: float


def sample(uri: str, epochs: int) -> Sample:
    seen = measure(open_dataset(uri), 1)
    stored = sum(path.stat().st_size for path in Path(uri).rglob("*") if path.is_file())
    return Sample(
        epochs,
        seen.fragments,
        seen.versions,
        stored,
        stored - seen.bytes,
        seen.manifest_bytes,
        seen.history_bytes,
        held().mib,
    )


def spend(folder: Path, given: Any) -> dict[str, Any]:
    """Drive one week; return its figures."""
    uri = str(folder / "week.lance")
    stream = Stream(uri, given.rows)
    control = Stream(str(folder / "control.lance"), given.rows)
    options = SinkOptions.parse(
        {"uri": uri, "queryId": "bench", "checkpointLocation": str(folder / "checkpoint")}
        | ({"autoCompactEvery": 0} if given.off else {})
    )
    keeper = AutoCompaction(
        options.auto_compact_every, options.query_id, keep=options.keep_versions_for
    )
    keeper.use_interval(INTERVAL)
    ageing = Ageing(uri, INTERVAL)
    samples, fragments, turns = list[Sample](), list[int](), list[float]()
    for epoch_id in range(given.epochs):
        stream.epoch(epoch_id)
        control.epoch(epoch_id)
        done = epoch_id + 1
        if done % AGED == 0:
            ageing.age(done)
        port: Any = stream.committer.port
        fragments.append(len(port.dataset.fragment_ids()))
        began = time.perf_counter()
        keeper.epoch_done(epoch_id, port, stream.committer.owner)
        if keeper.running:
            while keeper.running:
                time.sleep(0.001)
            turns.append(time.perf_counter() - began)
        if done % CONTROL == 0:
            shutil.rmtree(control.uri)
            control.renew(str(folder / f"control-{done}.lance"))
        hour = min(HOUR, given.epochs // 4)
        compared = given.first - hour < done <= given.first or done > given.epochs - hour
        if (compared and done % LOOKS == 0) or done % (2 * HOUR) == 0 or done == given.epochs:
            samples.append(sample(uri, done))
            print(samples[-1], file=sys.stderr)
    keeper.end(60)
    stream.check()
    figures = compare(stream, control, samples, fragments, given)
    figures |= {"turns": len(turns), "why": keeper.done.why}
    if turns:
        figures |= {
            "turn_p50_seconds": round(statistics.median(turns), 3),
            "turn_max_seconds": round(max(turns), 3),
        }
    return figures | {"upkeep": keeper.done.to_json(), "last": asdict(samples[-1])}


def compare(
    stream: Stream,
    control: Stream,
    samples: Sequence[Sample],
    fragments: Sequence[int],
    given: Any,
) -> dict[str, Any]:
    """Return the last hour's figures beside those of the first day's last hour."""
    hour = min(HOUR, given.epochs // 4)
    told: dict[str, Any] = {}

    def both(name: str, first: float, last: float) -> None:
        told[name] = {
            "first_day": round(first, 3),
            "last_hour": round(last, 3),
            "ratio": round(last / first, 3) if first else None,
        }

    def of_hour(values: Sequence[float], end: int) -> float:
        return statistics.median(values[end - hour : end])

    both(
        "commit_p50_ms",
        of_hour(stream.milliseconds, given.first),
        of_hour(stream.milliseconds, given.epochs),
    )
    pairs = zip(stream.milliseconds, control.milliseconds, strict=True)
    over = [mine / other for mine, other in pairs]
    both("commit_p50_by_control", of_hour(over, given.first), of_hour(over, given.epochs))
    both("fragments", of_hour(fragments, given.first), of_hour(fragments, given.epochs))
    for name in ("beside_bytes", "stored_bytes", "history_bytes", "versions", "memory_mib"):
        first, last = (
            statistics.median(
                getattr(each, name) for each in samples if end - hour < each.epochs <= end
            )
            for end in (given.first, given.epochs)
        )
        both(name, first, last)
    return told


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=WEEK)
    parser.add_argument("--first", type=int, default=DAY, help="the epoch that ends the first day")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--off", action="store_true", help="autoCompactEvery=0")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        figures = spend(Path(folder), arguments)
    return {"settings": vars(arguments)} | figures


def tell(figures: dict[str, Any]) -> None:
    claims = [
        Claim(f"week: {name}, last hour beside the first day's", figures[name]["ratio"], LIMIT)
        for name in CLAIMED
    ]
    print(json.dumps(study("week", figures.pop("settings"), claims, figures)))


if __name__ == "__main__":
    tell(main())
