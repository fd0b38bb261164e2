"""What Kafka's connector and client raise, as this package's errors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_lance.exceptions import SourceDataLossError, TransientError

__all__ = ["broker_advice", "data_loss", "missing_topic"]

_ERRORS = "org.apache.kafka.common.errors."
_LOST = "Some data may have been lost because they are not available"
_LOST_REASON = re.compile(r"\bReason: (.+?)(?: This could be either |$)")
_LOST_ADVICE = (
    "If the topic's retention removed them, continue without them: set "
    '"failOnDataLoss": "false" in the source\'s options for one run'
)
_ANOTHER_TOPIC = ("PARTITION_OFFSET_CHANGED", "PARTITIONS_DELETED")
_ANOTHER_TOPIC_ADVICE = (
    "Most likely the topic was deleted and created again, so its offsets began again at 0. Give "
    "the stream a new query_id and checkpoint_location: it then reads the new topic from its "
    'startingOffsets. With "failOnDataLoss": "false" it would skip records of the new topic'
)


def data_loss(chain: Sequence[tuple[str, str]]) -> SourceDataLossError | None:
    """Return that Kafka has lost records, in its connector's words; its client says less.

    :param chain: condition and message of an error and its causes, the outermost first.
    """
    found = next((each for each in chain if each[0].startswith("KAFKA_DATA_LOSS")), None)
    if found is None:  # connectors before 4.0 have no condition
        found = next((each for each in reversed(chain) if _LOST in each[1]), None)
    if found is None:
        return None
    said = " ".join(found[1].split())
    reason = _LOST_REASON.search(said)
    another_topic = found[0].partition(".")[2].startswith(_ANOTHER_TOPIC)
    return SourceDataLossError(
        "Kafka no longer has records that the query has not read. "
        f"{(reason[1] if reason else said).rstrip('.')}. "
        f"{_ANOTHER_TOPIC_ADVICE if another_topic else _LOST_ADVICE}"
    )


def missing_topic(name: str, message: str) -> TransientError | None:
    """Return that a running query's topic is gone: the next start says whether it is for good.

    :param name: the class of the JVM's exception.
    """
    if name != f"{_ERRORS}UnknownTopicOrPartitionException":
        return None
    return TransientError(
        f"the brokers do not know a topic that the stream reads, or not at this moment: {message} "
        "If it was deleted, the next start ends with SourceNotFoundError and names it"
    )


def broker_advice(name: str) -> str:
    """Return what to do where a broker denied access; empty for an error of another origin."""
    if not name.startswith(_ERRORS):
        return ""
    if name.endswith("AuthenticationException"):
        return (
            "Correct user and password in kafka.sasl.jaas.config, kafka.sasl.mechanism and "
            "kafka.security.protocol of the source's options, so that they are those of the "
            "listener in kafka.bootstrap.servers"
        )
    return "Let the stream's user describe and read the topic, or correct the source's options"
