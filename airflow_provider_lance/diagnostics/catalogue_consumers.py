"""The texts of findings about consumers: the streams that read the dataset."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["ConsumerCase"]

_START = "Start its stream again: clear its task, or trigger its DAG. "
_FORGET = "If it is not to run again, forget it with `lance-stream forget-consumer`."


class ConsumerCase(Case):
    """What ``rules_consumers`` may find."""

    LAGS = (
        Code.CONSUMER_LAGS,
        "Consumer {consumer} is at {position} and has {behind:,} versions to read, the oldest of "
        "them committed {waited} ago.",
        "Its stream does not run, or reads more slowly than others write. "
        + _START
        + "If it runs, "
        "give it larger epochs or more executors. Cleanup keeps its versions for {retention} after "
        "it last wrote its position. " + _FORGET,
    )
    GONE = (
        Code.CONSUMER_GONE,
        "Consumer {consumer} wrote its position, {position}, {age} ago: its versions are no longer "
        "kept.",
        "A consumer that runs writes it every {refresh}, and cleanup keeps versions for "
        "{retention}: the next one may remove what this consumer needs. " + _START + "It continues "
        "where it ended as long as version {needs} exists. " + _FORGET,
    )
    ENDS_SOON = (
        Code.CONSUMER_AT_RISK,
        "Cleanup keeps the versions from {needs} on for consumer {consumer} until {until} only: it "
        "wrote its position {age} ago.",
        "Its stream does not run: a consumer that runs writes its position every {refresh}. "
        + _START
        + "Or let cleanup keep more, with a longer consumerRetention. "
        + _FORGET,
    )
    VERSIONS_GONE = (
        Code.CONSUMER_AT_RISK,
        "{missing:,} of the versions from {needs} on are gone, and consumer {consumer}, which is "
        "at {position}, needs them.",
        "They were removed by a cleanup that passes over consumers, or after the position was "
        "older than {retention}. Its stream cannot continue. Forget the consumer, then start its "
        "stream with a new checkpoint and query id: it begins with a snapshot of the whole table, "
        "or with startingVersion at the oldest version that exists.",
        Severity.CRITICAL,
    )
    UNREADABLE = (
        Code.PROTOCOL_NEWER,
        "The position of consumer {consumer} cannot be read: {error}",
        "A newer airflow-provider-lance, another tool or a person wrote it. What the consumer "
        "needs is unknown, so cleanup removes nothing. Upgrade here, or start its stream again, "
        "which writes it again. " + _FORGET,
    )
