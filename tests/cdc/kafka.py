"""The laboratory of the real thing: Debezium's envelopes in Kafka, and drivers that are killed.

    python -m tests.cdc.kafka [--changes 200000] [--keys 20000] [--kills 3] [--scd 1|2]

Changes of many keys lie in four partitions of a topic, those of one key in several, some twice. A
stream with `envelope`, `sequenceBy` and `deleteWhen` reads them; its driver is killed, with
its JVM, in the midst of epochs. A plain replay in Python, by the position in the log, says what
the table must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.kafka import Broker, KafkaSession, kafka_broker
from tests.support.processes import wait_for

PARTITIONS, EPOCHS = 4, 20
TOPIC = "shop.public.orders"


@dataclass(frozen=True)
class Change:
    """One change of a row, and where it stands in the database's log."""

    lsn: int
    op: str
    key: int
    name: str

    def record(self) -> str:
        row = {"id": self.key, "name": self.name, "amount": f"{self.lsn}.25"}
        source = {"connector": "postgresql", "ts_ms": self.lsn, "lsn": self.lsn, "txId": self.lsn}
        payload = {
            "before": row if self.op == "d" else None,
            "after": None if self.op == "d" else row,
            "source": {**source, "sequence": f'["{self.lsn}","{self.lsn}"]', "snapshot": "false"},
            "op": self.op,
            "ts_ms": self.lsn + 5,
        }
        return json.dumps({"schema": {"type": "struct"}, "payload": payload})


def changes(count: int, keys: int, seed: int) -> Iterator[Change]:
    """Draw the database's log."""
    draw = random.Random(seed)
    alive: set[int] = set()
    for lsn in range(1, count + 1):
        key = draw.randrange(keys)
        op = "c" if key not in alive else draw.choices("ud", (4, 1))[0]
        (alive.discard if op == "d" else alive.add)(key)
        yield Change(lsn, op, key, f"name-{draw.randrange(1000)}")


def records(log: Sequence[Change], seed: int) -> pa.Table:
    """Lay the log into partitions: any change in any of them, one in twenty twice."""
    draw = random.Random(seed)
    texts, places = [], []
    for change in log:
        for _ in range(2 if draw.random() < 0.05 else 1):
            texts.append(change.record())
            places.append(draw.randrange(PARTITIONS))
        if change.op == "d":  # the tombstone record that follows a delete
            texts.append(None)
            places.append(places[-1])
    keys = pa.array([None] * len(texts), pa.string())
    return pa.table({"key": keys, "value": texts, "partition": pa.array(places, pa.int32())})


def replay(log: Sequence[Change], scd: int) -> set[tuple[Any, ...]]:
    """Return the rows that a table must hold: (key, name, position), in type 2 also the end."""
    open_: dict[int, Change] = {}
    history: set[tuple[Any, ...]] = set()
    for change in log:
        if before := open_.pop(change.key, None):
            history.add((before.key, before.name, before.lsn, change.lsn))
        if change.op != "d":
            open_[change.key] = change
    now = {(each.key, each.name, each.lsn) for each in open_.values()}
    return now if scd == 1 else history | {(*each, None) for each in now}


def stored(uri: str, scd: int) -> tuple[int, set[tuple[Any, ...]]]:
    """Return how many rows a table has, and which they are."""
    rows = lance.dataset(uri).to_table().to_pylist()
    at = "_sequence" if scd == 1 else "__start_at"
    found = []
    for row in rows:
        assert str(row["amount"]) == f"{row[at]['position']}.25", row
        values = (row["id"], row["name"], row[at]["position"])
        if scd == 2:
            end = row["__end_at"]
            values = (*values, end["position"] if end else None)
        found.append(values)
    return len(found), set(found)


def stream(broker: Broker, root: Path, scd: int, records: int) -> dict[str, Any]:
    """Return the specification of the job."""
    return {
        "launchId": "launch",
        "trigger": "availableNow",
        "source": {
            "format": "kafka",
            "options": {
                "kafka.bootstrap.servers": broker.servers,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(max(1, records // EPOCHS)),
            },
            "envelope": "debezium",
            "schema": "id BIGINT, name STRING, amount DECIMAL(12,2)",
        },
        "sql": "SELECT id, name, amount, _op, _sequence FROM source WHERE __lance_refused IS NULL",
        "sink": {
            "uri": str(root / "orders.lance"),
            "queryId": "orders",
            "checkpointLocation": str(root / "checkpoint"),
            "createIfMissing": True,
            "outputMode": "update",
            "mergeKeys": ["id"],
            "sequenceBy": ["_sequence"],
            "deleteWhen": "_op = 'd'",
            "exceptColumns": ["_op"],
            **({"scdType": 2} if scd == 2 else {}),
        },
    }


def laboratory(root: Path, *, count: int, keys: int, kills: int, scd: int, seed: int) -> str:
    """Run it once; return what was seen. Fails if table and replay differ."""
    log = list(changes(count, keys, seed))
    data = records(log, seed)
    pq.write_table(data, root / "records.parquet")
    began, done, died = time.monotonic(), -1, []
    draw = random.Random(seed)
    at = sorted(draw.sample(range(EPOCHS - 2), kills))
    with kafka_broker() as broker:
        spec = stream(broker, root, scd, data.num_rows)
        for number, epoch in enumerate([*at, None]):
            session = KafkaSession(broker, root / f"driver-{number}.log")
            try:
                if not number:
                    session.call("create", topic=TOPIC, partitions=PARTITIONS)
                    session.call("send", topic=TOPIC, path=str(root / "records.parquet"))
                if epoch is None:
                    summary = session.call("run", spec=spec)
                    assert summary["reason"] == "finished", summary
                    done = summary["watermark"]
                    continue
                session.ask("run", spec=spec)
                planned = root / "checkpoint" / "offsets" / str(epoch)
                wait_for(f"epoch {epoch}", planned.exists, 600)
                time.sleep(draw.random())
                died.append(epoch)
            finally:
                session.kill()
    many, found = stored(spec["sink"]["uri"], scd)
    expected = replay(log, scd)
    assert many == len(found), f"{many - len(found)} rows are doubled"
    assert found == expected, (
        f"{len(expected - found)} rows are missing, {len(found - expected)} are too many: "
        f"{sorted(expected ^ found)[:5]}"
    )
    return (
        f"type {scd}: {count} changes of {keys} keys as {data.num_rows} records in {PARTITIONS} "
        f"partitions, {done + 1} epochs, killed in epochs {died}: {many} rows equal the replay's, "
        f"{time.monotonic() - began:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cdc.kafka", description=__doc__)
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scd", type=int, choices=(1, 2), action="append", help="both without it")
    given = parser.parse_args()
    for scd in given.scd or (1, 2):
        with tempfile.TemporaryDirectory(prefix="cdc-") as name:
            sizes = {"count": given.changes, "keys": given.keys, "kills": given.kills}
            print(laboratory(Path(name), scd=scd, seed=given.seed, **sizes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
