"""Shapes of rows from Kafka, and small epochs of each: `python -m benchmarks.by_shape`.

The shapes are E5's. A record is one row as JSON, in a topic of two partitions; the rows of small
epochs are read from files, too. By turns in one Spark, which writes as a launched job does (no
`.crc` files): our sink, Spark's noop and parquet sinks, and for small epochs delta-rs by
`foreachBatch`.
Medians of the turns after the first one, which warms up, and their spread. What is claimed of rows
per second from Kafka has E5's limits, of small epochs E1's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.contestants import NOOP, OURS, STREAMS
from benchmarks.harness.measure import median
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Claim, study
from benchmarks.harness.spark import as_launched, durations, read_files, session
from benchmarks.harness.turns import by_turns
from benchmarks.shapes import SHAPES, Shape, make_input
from tests.support.kafka import connector_jars, kafka_broker
from tests.support.kafka_session import Kafka

PARTITIONS = 2
LARGE_EPOCHS = 3
SMALL_ROWS = 500
LARGE = (OURS, "parquet", NOOP)
SMALL = (*LARGE, "delta")
SMALL_LIMITS = {NOOP: 1.3, "parquet": 1.0, "delta": 1.0}
SETTLED = 3
"""Epochs at the start of a query that are not counted as small ones: they open files and load."""

Epochs = Sequence[float]
"""Milliseconds of a turn's epochs."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--part", type=int, default=8, help="of E5's rows an epoch has one in so many"
    )
    parser.add_argument("--turns", type=int, default=3, help="of each; the first warms up")
    parser.add_argument("--small-epochs", type=int, default=12, help="of each turn")
    given = parser.parse_args()
    told: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="by-shape-") as folder, kafka_broker() as broker:
        spark = session(jars=connector_jars())
        kafka = Kafka(spark, broker.servers)
        turns = len(given.shapes) * given.turns
        with progress("by shape", turns * (len(LARGE) + 2 * len(SMALL))) as advance:
            for name in given.shapes:
                bench = ShapeBench(spark, kafka, broker.servers, Path(folder), name, given, advance)
                told[name] = bench.run()
                print(json.dumps({name: told[name]}), file=sys.stderr, flush=True)
        spark.stop()
    print(json.dumps(study("by_shape", vars(given), list(claims(told)), told)))


class ShapeBench:
    """One shape's turns: large epochs from Kafka, small ones from Kafka and from files."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Kafka,
        servers: str,
        work: Path,
        name: str,
        given: Any,
        advance: Callable[[str], None],
    ) -> None:
        self._spark, self._kafka, self._servers = spark, kafka, servers
        self._work, self._name, self._given, self._advance = work / name, name, given, advance
        self._shape: Shape = SHAPES[name]

    def run(self) -> dict[str, Any]:
        """Return the figures of each kind of epochs, by contestant."""
        rows = self._shape.rows // self._given.part
        large = self._made("large", rows * LARGE_EPOCHS, PARTITIONS)
        small = self._made("small", SMALL_ROWS * self._given.small_epochs, self._given.small_epochs)
        from_files = partial(read_files, self._spark, small, schema=self._shape.ddl)
        told: dict[str, Any] = {
            "large epochs from Kafka": self._raced(LARGE, self._sent(large, rows), large=True),
            "small epochs from Kafka": self._raced(SMALL, self._sent(small, SMALL_ROWS)),
            "small epochs from files": self._raced(SMALL, from_files),
        }
        shutil.rmtree(self._work)
        return {"rows": rows, **told}

    def _made(self, size: str, rows: int, files: int) -> Path:
        folder = self._work / size
        make_input(self._spark, folder, self._shape, rows, files)
        return folder

    def _sent(self, folder: Path, rows: int) -> Callable[[], DataFrame]:
        """Send rows to a topic of their own; return what reads so many an epoch."""
        topic = f"{self._name}-{folder.name}".replace(" ", "-")
        self._kafka.create(topic, PARTITIONS)
        servers = {"kafka.bootstrap.servers": self._servers}
        self._spark.read.schema(self._shape.ddl).parquet(str(folder)).selectExpr(
            "to_json(struct(*)) AS value",
            f"CAST(monotonically_increasing_id() % {PARTITIONS} AS INT) AS partition",
        ).write.format("kafka").options(**servers, topic=topic).save()

        def read() -> DataFrame:
            source = self._spark.readStream.format("kafka").options(
                **servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=rows
            )
            parsed = f"from_json(CAST(value AS STRING), '{self._shape.ddl}') AS row"
            return source.load().selectExpr(parsed).select("row.*")

        return read

    def _raced(
        self, names: Sequence[str], read: Callable[[], DataFrame], *, large: bool = False
    ) -> dict[str, dict[str, float]]:
        workers = {name: partial(self._turn, name, read) for name in names}
        seen = by_turns(workers, self._given.turns, self._advance)
        summed = _of_large if large else _of_small
        return {name: summed(turns[1:]) for name, turns in seen.items()}

    def _turn(self, name: str, read: Callable[[], DataFrame], number: int) -> Epochs:
        place = self._work / f"{name}-{number}"
        place.mkdir()
        with as_launched(self._spark, str(place)), STREAMS[name](read(), str(place)) as query:
            query.awaitTermination()
        epochs = durations(query)
        shutil.rmtree(place)
        return epochs


def _of_large(turns: Sequence[Epochs]) -> dict[str, float]:
    later = [median(each[1:]) for each in turns]
    return {
        "first_ms": round(median([each[0] for each in turns])),
        "later_ms": round(median(later)),
        "slowest_over_fastest": round(max(later) / min(later), 2),
    }


def _of_small(turns: Sequence[Epochs]) -> dict[str, float]:
    each = [median(epochs[SETTLED:]) for epochs in turns]
    return {
        "p50_ms": round(median([ms for epochs in turns for ms in epochs[SETTLED:]]), 1),
        "slowest_over_fastest": round(max(each) / min(each), 2),
    }


def claims(told: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    """Yield ours beside the others, for each shape: rows a second from Kafka, then small epochs."""
    for name, kinds in told.items():
        shape, large = SHAPES[name], kinds["large epochs from Kafka"]
        for key, epochs in (("later_ms", "later epochs"), ("first_ms", "first epoch")):
            text = f"rows/s from Kafka against the parquet sink: {shape.of}, {name}, {epochs}"
            ratio = large["parquet"][key] / large[OURS][key]
            yield Claim(text, round(ratio, 3), shape.limit, atleast=True)
    for other, limit in SMALL_LIMITS.items():
        for name, kinds in told.items():
            for source in ("Kafka", "files"):
                small = kinds[f"small epochs from {source}"]
                ratio = small[OURS]["p50_ms"] / small[other]["p50_ms"]
                text = f"epoch of {SMALL_ROWS} rows beside {other}, {name} from {source}"
                yield Claim(text, round(ratio, 3), limit)


if __name__ == "__main__":
    main()
