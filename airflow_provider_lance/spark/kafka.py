"""The topics of a stream's Kafka sources: by Kafka's own ids, and how much of them is gone.

Spark knows a topic by its name. One that was deleted and created again has the same name and other
records at the same offsets, so rows would be missing and nothing would fail. Kafka gives each topic
an id. The ids lie in the checkpoint beside the offsets that they belong to: they are recorded
before Spark plans the first epoch, and each epoch is compared with them once it has been read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import (
    SourceNotFoundError,
    SourceReplacedError,
)
from airflow_provider_lance.protocol.checkpoint import TOPIC_IDS, Checkpoint
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.spark.compat import OTHER_INTERNALS
from airflow_provider_lance.spark.kafka_source import (
    UNKNOWN_TOPIC,
    KafkaSource,
    Offsets,
    cause_of,
    offsets_in,
    open_sources,
)

__all__ = ["KafkaTopics", "gone_offsets", "replaced_topics"]

log = logging.getLogger(__name__)

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's zero id: the broker is older than 2.8."""
_DENIED = "org.apache.kafka.common.errors.TopicAuthorizationException"
_PATIENCE_SECONDS = 15.0
"""How long a missing topic may take to appear: brokers learn of a new topic, and of all topics
after their own start, with a delay."""
_LOOK_SECONDS = 1.0

Ids = Mapping[str, tuple[str, ...]]
"""Topics by name, each with its id; with several if sources on several clusters have that name."""


class KafkaTopics:
    """The topics that one query reads; everything here is done with Spark's own Kafka client."""

    def __init__(
        self, session: SparkSession, sources: Sequence[KafkaSource], files: Files, forget: str
    ) -> None:
        """Store the arguments.

        :param files: the checkpoint.
        :param forget: the command that sets the recorded ids aside; empty if there is none.
        """
        self._session = session
        self._jvm: Any = session.sparkContext._jvm
        self._sources, self._files = sources, files
        self._otherwise = (
            ". If the topic has the same records at the same offsets, as after a move of the "
            f"cluster, type {forget}"
            if forget
            else ""
        )
        self._known: dict[str, tuple[str, ...]] = {}
        self._unidentified: set[str] = set()

    @classmethod
    def of(cls, df: DataFrame, files: Files, forget: str) -> KafkaTopics | None:
        """Return the topics of a streaming DataFrame, ``None`` if it reads none.

        :param files: the checkpoint.
        :param forget: the command that sets the recorded ids aside; empty if there is none.
        """
        try:
            sources = open_sources(df)
        except Py4JJavaError:
            raise
        except OTHER_INTERNALS as error:
            log.warning("Topics are not compared by id: Spark has other internals. error=%s", error)
            return None
        return cls(df.sparkSession, sources, files, forget) if sources else None

    def close(self) -> None:
        """Close the connections."""
        for source in self._sources:
            source.admin.close(self._jvm.java.time.Duration.ZERO)

    # -------------------------------------------------------------------------------------- check

    def admit(self, checkpoint: Checkpoint) -> None:
        """Compare the topics with those that the checkpoint's offsets belong to; record new ones.

        :raises SourceReplacedError: a topic was deleted and created again.
        :raises SourceNotFoundError: a topic that the options name is not there.
        """
        began = checkpoint.planned > NO_EPOCH  # before that, no offset belongs to any topic
        known = self._recorded() if began else {}
        seen = self._seen(self._matching)
        self._compare(known, seen)
        self._known = known
        self._record(seen)

    def confirm(self, ends: Iterable[str] | None) -> None:
        """Compare the topics with the recorded ones, after an epoch has been read.

        An id never comes back, so the epoch was read from the topics that had these ids before.

        :param ends: where the epoch ends, as Spark's log says; ``None`` if that is not known.
        :raises SourceReplacedError, SourceNotFoundError: as :meth:`admit`.
        """
        read = sorted({topic for topic, _ in offsets_in(ends or ())})
        seen = self._seen(lambda source: self._of_pattern(source, read))
        self._compare(self._known, seen)
        self._record(seen)

    def _compare(self, known: Ids, seen: Ids) -> None:
        if changed := replaced_topics(known, seen):
            topic = changed[0]
            more = f", and so are {', '.join(changed[1:])}" if changed[1:] else ""
            raise SourceReplacedError(
                f"topic {topic!r} has the id {' and '.join(seen[topic])}, and the stream has read "
                f"the topic with the id {' and '.join(known[topic])}{more}: it was deleted and "
                "created again, or the brokers are those of another cluster, so the stream's "
                "offsets name other records. Nothing of the epoch was committed. Give the stream a "
                "new query_id and checkpoint_location: it then reads the topic from its "
                f"startingOffsets{self._otherwise}"
            )

    def _record(self, seen: Ids) -> None:
        """Write the ids of topics that are not recorded yet.

        A file is never changed: one that was cut off by the end of a driver hides no older one.
        """
        if seen.items() <= self._known.items():
            return
        self._known |= seen
        names = [int(name) for name in self._files.names(TOPIC_IDS) if name.isdecimal()]
        content = json.dumps({"topics": self._known}).encode()
        self._files.write(f"{TOPIC_IDS}/{max(names, default=-1) + 1}", content)

    def _recorded(self) -> dict[str, tuple[str, ...]]:
        """Return the newest record that was written whole; empty if there is none."""
        names = [int(name) for name in self._files.names(TOPIC_IDS) if name.isdecimal()]
        for name in sorted(names, reverse=True):
            try:
                topics = json.loads(self._files.read(f"{TOPIC_IDS}/{name}") or b"")["topics"]
                return {str(topic): tuple(map(str, ids)) for topic, ids in topics.items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return {}

    # --------------------------------------------------------------------------------------- look

    def _seen(self, of_pattern: Callable[[KafkaSource], list[str]]) -> Ids:
        """Ask the brokers for the ids of all topics that are read."""
        found: dict[str, set[str]] = {}
        for source in self._sources:
            named = source.named
            wanted = of_pattern(source) if named is None else named
            for topic, its_id in self._described(source, wanted, named is not None):
                found.setdefault(topic, set()).add(its_id)
        return {topic: tuple(sorted(ids)) for topic, ids in found.items()}

    def _described(
        self, source: KafkaSource, topics: list[str], must_exist: bool
    ) -> Iterator[tuple[str, str]]:
        pending = source.admin.describeTopics(topics).topicNameValues() if topics else {}
        for topic in topics:
            answer, until = pending[topic], time.monotonic() + _PATIENCE_SECONDS
            while True:
                try:
                    its_id = str(answer.get().topicId().toString())
                except Py4JJavaError as error:
                    cause = cause_of(error)
                    if cause == UNKNOWN_TOPIC and must_exist and time.monotonic() < until:
                        time.sleep(_LOOK_SECONDS)
                        answer = source.admin.describeTopics([topic]).topicNameValues()[topic]
                        continue
                    if cause == UNKNOWN_TOPIC and must_exist:
                        raise self._not_found(source, topic) from None
                    if cause not in (UNKNOWN_TOPIC, _DENIED):
                        raise
                    its_id = _NO_ID
                    if cause == UNKNOWN_TOPIC:
                        break  # Spark says what it lost with it
                if its_id != _NO_ID:
                    yield topic, its_id
                else:
                    self._note_unidentified(topic)
                break

    def _note_unidentified(self, topic: str) -> None:
        if topic not in self._unidentified:
            self._unidentified.add(topic)
            log.warning(
                "The broker does not tell the id of topic %r (Kafka tells it from 2.8 on, and to "
                "users who may describe the topic): a topic of this name that was created again "
                "and has as many records is not noticed.",
                topic,
            )

    def _not_found(self, source: KafkaSource, topic: str) -> SourceNotFoundError:
        servers = source.options.get("kafka.bootstrap.servers", "")
        return SourceNotFoundError(
            f"the brokers at {servers} have no topic {topic!r}. Correct the source's options, or "
            "create the topic and start the stream again. If it was deleted and is to be created "
            "again, give the stream a new query_id and checkpoint_location"
        )

    def _matching(self, source: KafkaSource) -> list[str]:
        """Return the topics that a source's pattern matches now."""
        names = source.admin.listTopics().names().get()
        return self._of_pattern(source, sorted(map(str, names)))

    def _of_pattern(self, source: KafkaSource, topics: list[str]) -> list[str]:
        pattern = source.options.get("subscribepattern", "")
        matches = self._jvm.java.util.regex.Pattern.matches
        return [topic for topic in topics if matches(pattern, topic)]

    # --------------------------------------------------------------------------------------- lag

    def waiting_since(self, read: str, newest: str) -> float | None:
        """Return the timestamp of the oldest record that is not read, in seconds since 1970.

        :param read: where the last epoch ended, as Spark's progress says; ``newest`` likewise where
            the topics end.
        :return: ``None`` if there is none, or the brokers did not answer in time.
        """
        first, last = offsets_in([read]), offsets_in([newest])
        places = {each: first.get(each, 0) for each in last if last[each] > first.get(each, 0)}
        found = [
            source.oldest(mine)
            for source in self._sources
            if (mine := {each: at for each, at in places.items() if source.reads(each[0])})
        ]
        return min((each for each in found if each is not None), default=None)

    # --------------------------------------------------------------------------------------- loss

    @property
    def passes_over_loss(self) -> bool:
        """Return whether a source has ``failOnDataLoss=false``."""
        return any(source.passes_over_loss for source in self._sources)

    def gone(self, starts: Iterable[str], ends: Iterable[str]) -> int:
        """Return how many offsets of an epoch are gone, in sources that pass over them.

        Ask after the epoch has been read: a record that is removed between its reading and this
        counts too.
        """
        first, last, count = offsets_in(starts), offsets_in(ends), 0
        for source in self._sources:
            if source.passes_over_loss:
                mine = [place for place in last if source.reads(place[0])]
                count += gone_offsets(first, last, source.earliest(mine))
        return count


def replaced_topics(known: Ids, seen: Ids) -> list[str]:
    """Return the topics that are recorded with other ids than they have now, sorted."""
    return sorted(
        topic for topic, ids in seen.items() if not set(ids) <= set(known.get(topic, ids))
    )


def gone_offsets(starts: Offsets, ends: Offsets, earliest: Offsets) -> int:
    """Return how many offsets between ``starts`` and ``ends`` are before the earliest ones.

    A partition that an epoch reads for the first time begins at 0, in Spark too.
    """
    return sum(
        max(0, min(earliest[place], end) - starts.get(place, 0))
        for place, end in ends.items()
        if place in earliest
    )
