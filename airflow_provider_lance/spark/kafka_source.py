"""One Kafka source of a stream, reached with Spark's own client: what its topics have now."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.spark.streaming_plan import source_options

__all__ = ["UNKNOWN_TOPIC", "KafkaSource", "Offsets", "cause_of", "offsets_in", "open_sources"]

UNKNOWN_TOPIC = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
"""What a client's future fails with where there is no such topic."""
_FORMATS = ("kafka", "org.apache.spark.sql.kafka010.kafkasourceprovider")
_LAG_SECONDS = 2.0
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_ONE_RECORD = {
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "max.partition.fetch.bytes": "1",  # a broker sends the first batch of records nevertheless
}

Place = tuple[str, int]
"""A topic and a partition."""
Offsets = Mapping[Place, int]


@dataclass(frozen=True)
class KafkaSource:
    """One Kafka source of a query: its options, in lower case, and a client of its cluster."""

    session: SparkSession
    options: Mapping[str, str]
    admin: Any

    @property
    def named(self) -> list[str] | None:
        """Return the topics that the options name, ``None`` with a pattern."""
        if assigned := self.options.get("assign"):
            return sorted(json.loads(assigned))
        if subscribed := self.options.get("subscribe"):
            return [each.strip() for each in subscribed.split(",") if each.strip()]
        return None

    @property
    def kafka(self) -> dict[str, str]:
        """Return the settings of Kafka's clients."""
        return {n[6:]: text for n, text in self.options.items() if n.startswith("kafka.")}

    def reads(self, topic: str) -> bool:
        """Return whether the options name a topic; with a pattern, they may name any."""
        return self.named is None or topic in self.named

    @property
    def passes_over_loss(self) -> bool:
        """Return whether it reads on where records are gone."""
        return self.options.get("failondataloss", "true").lower() == "false"

    def oldest(self, places: Offsets) -> float | None:
        """Return the timestamp of the oldest record at some offsets or behind them, as seconds.

        Reads one record of each partition, with a consumer that commits nothing.

        :return: ``None`` if there is none, or the brokers did not answer in time.
        """
        gateway: Any = self.session.sparkContext._gateway
        kind = gateway.jvm.org.apache.kafka.common.TopicPartition
        partitions = gateway.new_array(kind, len(places))
        for number, place in enumerate(places):
            partitions[number] = kind(*place)
        strategy = gateway.jvm.org.apache.spark.sql.kafka010.AssignStrategy(partitions)
        consumer = strategy.createConsumer(self.kafka | _ONE_RECORD)
        try:
            for number, offset in enumerate(places.values()):
                consumer.seek(partitions[number], gateway.jvm.java.lang.Long(offset))
            waiting, oldest = len(places), math.inf
            until = time.monotonic() + _LAG_SECONDS
            while waiting and time.monotonic() < until:
                records = consumer.poll(gateway.jvm.java.time.Duration.ofMillis(200))
                for partition in records.partitions():
                    oldest = min(oldest, records.records(partition)[0].timestamp() / 1000)
                    consumer.pause([partition])
                    waiting -= 1
            return oldest if oldest < math.inf else None
        finally:
            consumer.close(gateway.jvm.java.time.Duration.ZERO)

    def earliest(self, places: Iterable[Place]) -> Offsets:
        """Return the earliest offset that each partition still has."""
        jvm: Any = self.session.sparkContext._jvm
        kind = jvm.org.apache.kafka.common.TopicPartition
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        asked = {place: kind(*place) for place in places}
        answer = self.admin.listOffsets(dict.fromkeys(asked.values(), spec))
        found: dict[tuple[str, int], int] = {}
        for place, each in asked.items():
            try:
                found[place] = int(answer.partitionResult(each).get().offset())
            except Py4JJavaError as error:
                if cause_of(error) != UNKNOWN_TOPIC:
                    raise
        return found


def open_sources(df: DataFrame) -> list[KafkaSource]:
    """Return the Kafka sources of a streaming DataFrame.

    :raises SpecError: the options are not those of a client.
    """
    return [_opened(df.sparkSession, options) for options in source_options(df, _FORMATS)]


def _opened(session: SparkSession, options: Mapping[str, str]) -> KafkaSource:
    gateway: Any = session.sparkContext._gateway
    jvm = gateway.jvm
    none = gateway.new_array(jvm.org.apache.kafka.common.TopicPartition, 0)
    # Spark's own way to a client: it adds a delegation token, if there is one.
    strategy = jvm.org.apache.spark.sql.kafka010.AssignStrategy(none)
    try:
        admin = strategy.createAdmin(KafkaSource(session, options, None).kafka)
    except Py4JJavaError as error:
        raise SpecError(f"the source's options are refused: {_deepest(error)}") from None
    return KafkaSource(session, options, admin)


def offsets_in(lines: Iterable[str]) -> dict[Place, int]:
    """Read lines of Spark's log: the offsets of Kafka's sources; lines of others are left out."""
    found: dict[Place, int] = {}
    for line in lines:
        try:
            topics = json.loads(line[line.index("{") :])
            found |= {
                (topic, int(partition)): int(offset)
                for topic, partitions in topics.items()
                for partition, offset in partitions.items()
            }
        except (ValueError, TypeError, AttributeError):
            continue
    return found


def cause_of(error: Py4JJavaError) -> str:
    """Return the class of what a Kafka client's future failed with."""
    thrown = error.java_exception.getCause() or error.java_exception
    return str(thrown.getClass().getName())


def _deepest(error: Py4JJavaError) -> str:
    thrown = error.java_exception
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return str(thrown.getMessage())
