"""The texts of findings about consumers: the streams that read the dataset."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["FORGET", "FORGET_FIRST", "LARGER", "NEW_QUERY", "START", "UPGRADE", "ConsumerCase"]

START = "If its stream is to run on, {again}"
LARGER = (
    "If it runs and stays behind, give it larger epochs (maxRowsPerTrigger, maxBytesPerTrigger) or "
    "more executors."
)
FORGET = "If it is not to run again, stop it where it runs, and forget it."
FORGET_FIRST = "Forget what it has read; where it still runs, stop it first."
NEW_QUERY = (
    "If it is to go on, give it a new query_id and a new checkpoint and start it: it reads the "
    "whole table again, so let it write to a new dataset, or upsert by keys. With the source's "
    "option startingVersion={oldest} it reads on from there, and misses what {missing:,} versions "
    "changed."
)
UPGRADE = "If a newer airflow-provider-lance wrote it, install that version here."


class ConsumerCase(Case):
    """What ``rules_consumers`` may find."""

    LAGS = (
        Code.CONSUMER_LAGS,
        "Consumer {consumer} is at {position} and has {behind:,} versions to read, the oldest of "
        "them committed {waited} ago.",
        "Its stream does not run, or reads more slowly than others write. Cleanup keeps its "
        "versions for {retention} after it last wrote its position.",
    )
    GONE = (
        Code.CONSUMER_GONE,
        "Consumer {consumer} wrote its position, {position}, {age} ago: its versions are no longer "
        "kept.",
        "A consumer that runs writes it every {refresh}, and cleanup keeps versions for "
        "{retention}: the next one may remove what this consumer needs. It continues where it "
        "ended as long as version {needs} exists.",
    )
    ENDS_SOON = (
        Code.CONSUMER_AT_RISK,
        "Cleanup keeps the versions from {needs} on for consumer {consumer} until {until} only: it "
        "wrote its position {age} ago.",
        "Its stream does not run: a consumer that runs writes its position every {refresh}.",
    )
    VERSIONS_GONE = (
        Code.CONSUMER_AT_RISK,
        "{missing:,} of the versions from {needs} on are gone, and consumer {consumer}, which is "
        "at {position}, needs them.",
        "They were removed by a cleanup that passes over consumers, or after the position was "
        "older than {retention}. Its stream cannot continue. The table itself has all its rows.",
        Severity.CRITICAL,
    )
    UNREADABLE = (
        Code.PROTOCOL_NEWER,
        "The position of consumer {consumer} cannot be read: {error}",
        "A newer airflow-provider-lance, another tool or a person wrote it. What the consumer "
        "needs is unknown, so cleanup removes nothing.",
    )
