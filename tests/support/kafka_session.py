"""One Spark with the Kafka connector in a process of its own, which does what a test asks for.

The tests' own Spark has no such jars, and must not: they test what happens without them.

    python -m tests.support.kafka_session SERVERS JARS

reads one JSON object a line, ``{"call": name, ...arguments}``, and answers with one.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.spark.application import start_logging
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from tests.support.processes import wait_for


class Kafka:
    """What a test does with topics, by the connector's own client."""

    def __init__(self, session: SparkSession, servers: str) -> None:
        self._session, self._servers = session, servers
        self._gateway: Any = session.sparkContext._gateway
        self._java = self._gateway.jvm
        settings = self._java.java.util.Properties()
        settings.put("bootstrap.servers", servers)
        self._clients = self._java.org.apache.kafka.clients
        self._admin = self._clients.admin.Admin.create(settings)

    def create(self, topic: str, partitions: int = 1) -> None:
        made = self._clients.admin.NewTopic(topic, partitions, self._java.Short(1))
        self._admin.createTopics([made]).all().get()

    def delete(self, topic: str) -> None:
        self._admin.deleteTopics([topic]).all().get()

    def add(self, topic: str, first: int, count: int, partition: int = 0) -> None:
        """Add records whose values are successive numbers, in their order."""
        rows = self._session.range(first, first + count, 1, 1)
        value = F.col("id").cast("string").alias("value")
        rows.select(value, F.lit(partition).alias("partition")).write.format("kafka").options(
            **{"kafka.bootstrap.servers": self._servers, "topic": topic}
        ).save()

    def send(self, topic: str, path: str) -> None:
        """Add the records of a parquet file: key, value, partition; in each partition in order."""
        rows = self._session.read.parquet(path).coalesce(1)
        rows.write.format("kafka").options(
            **{"kafka.bootstrap.servers": self._servers, "topic": topic}
        ).save()

    def remove(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the records before an offset, as retention does."""
        place = self._java.org.apache.kafka.common.TopicPartition(topic, partition)
        # A getter has the same name as this static method: py4j takes the one or the other.
        kind = self._clients.admin.RecordsToDelete._java_lang_class
        long = self._java.java.lang.Long
        types = self._gateway.new_array(self._java.java.lang.Class, 1)
        types[0] = long.TYPE
        values = self._gateway.new_array(self._java.java.lang.Object, 1)
        values[0] = long.valueOf(before)
        until = kind.getMethod("beforeOffset", types).invoke(None, values)
        self._admin.deleteRecords({place: until}).all().get()

    def source_options(self) -> list[str]:
        """Return every text that the connector's provider has as a constant, in lower case."""
        provider = self._java.java.lang.Class.forName(
            "org.apache.spark.sql.kafka010.KafkaSourceProvider$",
            True,
            self._java.java.lang.Thread.currentThread().getContextClassLoader(),
        )
        found = []
        for field in provider.getDeclaredFields():
            if field.getType().getSimpleName() == "String":
                field.setAccessible(True)
                found.append(str(field.get(None)).lower())
        return found

    def consumer_options(self) -> list[str]:
        """Return the names of all settings that Kafka's consumer has."""
        return list(self._clients.consumer.ConsumerConfig.configNames())

    def run(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Run a job; return its summary."""
        return run(self._session, JobSpec.parse(spec)).to_json()

    def run_during(
        self, spec: dict[str, Any], path: str, calls: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Run a job, call functions of this class once a file is there; return its summary."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.run, spec)
            wait_for(path, lambda: os.path.exists(path) or running.done())
            for each in calls:
                getattr(self, each.pop("call"))(**each)
            return running.result()


def main(servers: str, jars: str) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )
    start_logging()
    kafka = Kafka(session, servers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(kafka, request.pop("call"))(**request)}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
