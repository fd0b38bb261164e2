"""A real broker of Kafka and Spark's connector: records read once, and records that are gone."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.cli.output import Exit
from airflow_provider_lance.diagnostics.collect import collect
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.exceptions import TerminalError, error_class
from airflow_provider_lance.protocol.checkpoint import TOPIC_IDS
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.spec.source_options import consumer_options, known_options
from airflow_provider_lance.supervision.driver_reports import read_heartbeat
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.triggers.task_log import Warnings
from tests.support.kafka import KafkaSession, kafka_broker
from tests.support.processes import wait_for
from tests.support.recovery_stream import warning_codes

pytestmark = pytest.mark.slow

OFF = {"failOnDataLoss": "false"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSession]:
    with kafka_broker() as broker:
        started = KafkaSession(broker, tmp_path_factory.mktemp("kafka") / "driver.log")
        try:
            yield started
        finally:
            started.end()


class Topic:
    """A topic with a stream that reads it into a dataset."""

    sql = "SELECT partition, offset, int(string(value)) AS value FROM source"

    def __init__(self, session: KafkaSession, root: Path, name: str, partitions: int) -> None:
        self._session, self._root, self.name, self._partitions = session, root, name, partitions
        self._call("create", partitions=partitions)

    def _call(self, what: str, **arguments: Any) -> None:
        self._session.call(what, topic=self.name, **arguments)

    def add(self, first: int, count: int, partition: int = 0) -> None:
        self._call("add", first=first, count=count, partition=partition)

    def remove(self, before: int) -> None:
        self._call("remove", before=before)

    def create_again(self, partitions: int | None = None) -> None:
        self._call("delete")
        self._call("create", partitions=partitions or self._partitions)

    def run(self, query_id: str = "orders", **options: str | None) -> dict[str, Any]:
        """Read what is available; return the driver's summary."""
        return self._session.call("run", spec=self.spec(query_id, options))

    def spec(self, query_id: str, options: dict[str, str | None]) -> dict[str, Any]:
        given = {
            "kafka.bootstrap.servers": self._session.servers,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            **options,
        }
        return {
            "launchId": "launch",
            "trigger": "availableNow",
            "source": {
                "format": "kafka",
                "options": {name: text for name, text in given.items() if text is not None},
            },
            "sql": self.sql,
            "sink": {
                "uri": self.uri,
                "queryId": query_id,
                "checkpointLocation": str(self._root / f"checkpoint-{query_id}"),
                "createIfMissing": True,
            },
        }

    @property
    def uri(self) -> str:
        return str(self._root / "orders.lance")

    def values(self) -> list[int]:
        return lance.dataset(self.uri).to_table(["value"])["value"].to_pylist()


@pytest.fixture
def topic(session: KafkaSession, tmp_path: Path) -> Topic:
    """A topic of one partition, of whose records a stream has read the first ten."""
    made = Topic(session, tmp_path, tmp_path.name, 1)
    made.add(0, 10)
    assert made.run()["rows"] == 10
    return made


def codes(topic: Topic) -> list[Code]:
    """Return what the desk finds of the stream."""
    return warning_codes(collect(open_dataset(topic.uri), "orders"))


def lost(summary: dict[str, Any]) -> str:
    """Return the message of a driver that ended because Kafka has lost records."""
    assert summary["reason"] == "failed"
    assert summary["error"] == "SourceDataLossError"
    assert issubclass(error_class("SourceDataLossError"), TerminalError), "not retried"
    assert summary["message"].startswith("Kafka ")
    assert "\n" not in summary["message"]
    return str(summary["message"])


def test_each_record_lands_once(session: KafkaSession, tmp_path: Path) -> None:
    topic = Topic(session, tmp_path, tmp_path.name, 3)
    for partition in range(3):
        topic.add(partition * 1000, 400, partition)
    first = topic.run(maxOffsetsPerTrigger="300")
    assert (first["rows"], first["epochs"]) == (1200, 4)
    topic.add(400, 100)
    assert topic.run()["rows"] == 100
    assert topic.run()["rows"] == 0
    expected = [*range(500), *range(1000, 1400), *range(2000, 2400)]
    assert sorted(topic.values()) == expected


def replaced(summary: dict[str, Any], topic: Topic) -> str:
    """Return the message of a driver that refused a topic which was created again."""
    assert (summary["reason"], summary["error"]) == ("failed", "SourceReplacedError"), summary
    assert issubclass(error_class("SourceReplacedError"), TerminalError), "not retried"
    message = str(summary["message"])
    assert f"topic {topic.name!r} has the id " in message
    assert "new query_id and checkpoint_location:" in message
    return message


def typed(message: str) -> list[str]:
    """Return the arguments of the command in a driver's message."""
    return shlex.split(message.partition(", type lance-stream ")[2])


@pytest.mark.parametrize(
    ("count", "off"),
    [(3, {}), (10, {}), (15, OFF)],
    ids=["shorter", "equal", "longer, and losses are passed over"],
)
def test_a_topic_created_again_is_refused(topic: Topic, count: int, off: dict[str, str]) -> None:
    topic.create_again()
    topic.add(100, count)
    for _ in range(2):
        replaced(topic.run(**off), topic)
    assert topic.values() == list(range(10)), "nothing of the new topic"
    assert topic.run("orders-2")["rows"] == count, "what the message says"
    assert sorted(topic.values()) == [*range(10), *range(100, 100 + count)]
    topic.add(200, 2)
    assert topic.run("orders-2")["rows"] == 2


def test_a_topic_created_again_with_fewer_partitions_is_refused(
    session: KafkaSession, tmp_path: Path
) -> None:
    topic = Topic(session, tmp_path, tmp_path.name, 2)
    topic.add(0, 5, partition=0)
    topic.add(5, 5, partition=1)
    topic.run()
    topic.create_again(partitions=1)
    topic.add(100, 20)
    replaced(topic.run(), topic)


@pytest.mark.parametrize("how", ["subscribePattern", "assign"])
def test_a_topic_created_again_is_refused_however_it_is_named(
    session: KafkaSession, tmp_path: Path, how: str
) -> None:
    topic = Topic(session, tmp_path, tmp_path.name, 1)
    given = {
        "subscribePattern": {"subscribePattern": f"{topic.name}.*"},
        "assign": {"assign": json.dumps({topic.name: [0]})},
    }[how]
    topic.add(0, 10)
    assert topic.run(subscribe=None, **given)["rows"] == 10
    if how == "subscribePattern":
        other = Topic(session, tmp_path, f"{topic.name}-other", 1)
        other.add(10, 5)
        assert topic.run(subscribe=None, **given)["rows"] == 5
        topic = other
    topic.create_again()
    topic.add(100, 15)
    replaced(topic.run(subscribe=None, **given), topic)


def test_a_topic_created_again_is_refused_though_its_epoch_never_landed(
    session: KafkaSession, tmp_path: Path
) -> None:
    """No row, so the dataset has no trace of the query: only the checkpoint knows the topic."""
    topic = Topic(session, tmp_path, tmp_path.name, 1)
    topic.add(0, 10)
    topic.sql = "SELECT partition, offset, 1 AS value FROM source WHERE offset < 0"
    assert topic.run()["epochs"] == 0
    topic.create_again()
    topic.add(100, 15)
    message = replaced(topic.run(), topic)
    assert main([*typed(message), "--yes"]) == Exit.HEALTHY
    topic.sql = Topic.sql
    assert topic.run()["rows"] == 5, "it goes on at offset 10"


def test_a_topic_that_is_the_same_one_can_be_accepted(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.create_again()
    topic.add(0, 15)
    message = replaced(topic.run(), topic)
    command = typed(message)
    ids = tmp_path / "checkpoint-orders" / TOPIC_IDS
    assert codes(topic) == [Code.TOPIC_REPLACED]
    assert main(command) == Exit.USAGE, "it says: add --yes"
    assert (ids / "0").exists(), "a plan moves nothing"
    assert main([*command, "--yes"]) == Exit.HEALTHY
    assert "the next start goes on at its offsets" in capsys.readouterr().out
    assert not (ids / "0").exists()
    assert main([*command, "--yes"]) == Exit.HEALTHY
    assert "No ids of topics are recorded" in capsys.readouterr().out
    assert topic.run()["rows"] == 5
    assert topic.values() == list(range(15))
    topic.create_again()
    replaced(topic.run(), topic)


def test_a_topic_created_again_while_an_epoch_is_read_is_refused(
    topic: Topic, session: KafkaSession, tmp_path: Path
) -> None:
    topic.add(10, 10)
    spec = topic.spec("orders", {"kafkaConsumer.pollTimeoutMs": "4000", "minPartitions": "10"})
    slowly = "java_method('java.lang.Thread', 'sleep', CAST(if(offset > -1, 300, 0) AS BIGINT))"
    spec["sql"] = f"{topic.sql} WHERE {slowly} IS NULL OR true"
    again = [
        {"call": "delete", "topic": topic.name},
        {"call": "create", "topic": topic.name},
        {"call": "add", "topic": topic.name, "first": 100, "count": 30},
    ]
    planned = str(tmp_path / "checkpoint-orders" / "offsets" / "1")
    summary = session.call("run_during", spec=spec, path=planned, calls=again)
    if summary["error"] != "SourceDataLossError":  # Spark asked between the two topics
        replaced(summary, topic)
    assert topic.values() == list(range(10))
    replaced(topic.run(), topic)  # in either case, the next start sees it
    assert topic.values() == list(range(10))


def test_records_that_retention_removed_are_data_loss(topic: Topic) -> None:
    topic.add(10, 10)
    topic.remove(before=15)
    for _ in "planned now", "planned by the driver before":
        message = lost(topic.run())
        assert (
            f"Could not read records in offset [10, 20) for topic partition {topic.name}-0 "
            in message
        )
        assert 'set "failOnDataLoss": "false" in' in message
    assert topic.values() == list(range(10))
    summary = topic.run(**OFF)
    assert (summary["rows"], summary["checks"]["lost"]) == (5, 5), "what the message says"
    assert codes(topic) == [Code.SOURCE_LOST]


def test_fail_on_data_loss_false_passes_over_what_is_gone_and_the_task_shows_the_warning(
    topic: Topic, session: KafkaSession
) -> None:
    topic.add(10, 10)
    topic.remove(before=15)
    before = len(session.log())
    assert topic.run(**OFF)["rows"] == 5
    assert sorted(topic.values()) == [*range(10), *range(15, 20)]
    shown = [line for line in map(Warnings(), session.log()[before:].splitlines()) if line]
    assert any("Cannot fetch offset 10(" in x and f"{topic.name}-0" in x for x in shown), shown
    assert any("Some data may be lost. Recovering from the earliest offset: 15" in x for x in shown)
    topic.add(20, 1)
    assert topic.run()["rows"] == 1, "for one run"


def test_a_driver_knows_how_old_the_oldest_unread_record_is(
    topic: Topic, session: KafkaSession, tmp_path: Path
) -> None:
    topic.add(10, 1)
    assert topic.run()["rows"] == 1
    began = time.time()
    topic.add(11, 300)
    added = time.time()
    time.sleep(2)
    session.ask("run", spec=topic.spec("orders", {"maxOffsetsPerTrigger": "15"}))
    seen: list[Heartbeat] = []

    def beat() -> Heartbeat:
        files = open_files(str(tmp_path / "checkpoint-orders.reports"))
        return Heartbeat.parse(read_heartbeat(files, "launch") or {})

    def is_behind() -> bool:
        seen.append(beat())
        return (seen[-1].seconds_behind or 0) > 0

    wait_for("a heartbeat that is behind", is_behind)
    since = datetime.fromisoformat(seen[-1].time).timestamp() - seen[-1].seconds_behind
    assert began - 1 < since < added + 1
    assert seen[-1].behind
    assert session.answer()["rows"] == 300
    assert (beat().behind, beat().seconds_behind) == (0, 0)


def test_a_topic_that_is_not_there_is_named(topic: Topic, session: KafkaSession) -> None:
    session.call("delete", topic=topic.name)
    summary = topic.run()
    assert (summary["reason"], summary["error"]) == ("failed", "SourceNotFoundError")
    assert issubclass(error_class(summary["error"]), TerminalError)
    assert f"have no topic {topic.name!r}." in summary["message"]


def test_a_topic_that_is_deleted_while_the_driver_runs_is_named(
    topic: Topic, session: KafkaSession, tmp_path: Path
) -> None:
    spec = topic.spec("orders", {"kafkaConsumer.pollTimeoutMs": "4000"})
    spec["trigger"] = "300 milliseconds"
    topic.add(10, 1)
    calls = [{"call": "delete", "topic": topic.name}]
    done = str(tmp_path / "checkpoint-orders" / "commits" / "1")
    summary = session.call("run_during", spec=spec, path=done, calls=calls)
    # Spark itself gives up where it plans an epoch; the next driver says whether it is for good.
    assert (summary["reason"], summary["error"]) == ("failed", "TransientError")
    assert "the next start ends with SourceNotFoundError" in summary["message"]
    assert topic.values() == list(range(11))


def test_the_options_of_the_source_are_those_of_the_connector(session: KafkaSession) -> None:
    constants = set(session.call("source_options"))
    known = {name.lower() for name in known_options("kafka")}
    assert known <= constants
    names = {text for text in constants if " " not in text and not text.startswith("org.apache.")}
    others = {"topic", "_mocksystemtime"}  # the sink's; Spark's tests'
    assert {x for x in names - known - others if "\n" not in x} == {"15m"}, "a default value"


def test_the_options_of_the_consumer_are_those_of_kafka(session: KafkaSession) -> None:
    # The connector sets these itself, and refuses to be told otherwise.
    own = {"auto.offset.reset", "enable.auto.commit", "key.deserializer", "value.deserializer"}
    names = {x for x in session.call("consumer_options") if not x.startswith("internal.")}
    assert set(consumer_options()) == names - own
