"""The repair of a consumer's record: remove it, so that cleanup keeps nothing for it."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_lance.diagnostics.formatting import lasted
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DriverAliveError,
    ProtocolVersionError,
    SpecError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import consumer_ids
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.consumers import (
    REFRESH_SECONDS,
    forget_updates,
    read_consumer,
)
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["forget_consumer"]


def forget_consumer(
    port: DatasetPort,
    consumer_id: str,
    *,
    proven_dead: bool = False,
    connection_arguments: str = "",
    dry_run: bool = False,
    backoff: Backoff | None = None,
) -> RepairResult:
    """Remove a consumer's record from the dataset that it reads.

    A consumer that writes its position meanwhile is looked at again.

    :param proven_dead: the caller knows by other means that no driver of the consumer runs.
    :raises DriverAliveError: the consumer may run: its position is young, or it is unreadable.
    :raises SpecError: the dataset does not know the consumer.
    :raises TransientError: the store refused too often.
    """
    sent = False
    for attempt in backoff or Backoff():
        port = port.latest()
        if consumer_id not in consumer_ids(port.config):
            if sent:  # an attempt landed without an answer
                return _result(port, consumer_id, f"consumer {consumer_id!r} forgotten")
            raise _unknown(port, consumer_id)
        position, age = _position(port, consumer_id)
        if not proven_dead and (age is None or age < REFRESH_SECONDS):
            raise _refusal(port, consumer_id, position, connection_arguments)
        sentence = (
            f"consumer {consumer_id!r} forgotten, {position}: cleanup keeps nothing more for it"
        )
        updates = forget_updates(consumer_id)
        if dry_run:
            write = Write(port.version + 1, "forget the consumer", updates)
            return _result(port, consumer_id, sentence, plan=(write,))
        try:
            return _result(port.commit(Configure(updates)), consumer_id, sentence)
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            sent, attempt.error = True, error
    raise AssertionError("a backoff ends in its last error")


def _position(port: DatasetPort, consumer_id: str) -> tuple[str, float | None]:
    """Return where a consumer stands, and the age of its record in seconds; ``None``: unknown."""
    try:
        found = read_consumer(port.config, consumer_id, port.version)
    except ProtocolVersionError:
        return "whose position cannot be read", None
    assert found is not None
    age = found.age(datetime.now(UTC))
    at = found.at.isoformat(timespec="seconds")
    return f"which was at {found.offset} at {at} ({lasted(age)} ago)", age


def _unknown(port: DatasetPort, consumer_id: str) -> SpecError:
    known = ", ".join(map(repr, consumer_ids(port.config))) or "none"
    return SpecError(
        f"{port.uri} at version {port.version} has no record of consumer {consumer_id!r}; the "
        f"consumers it knows: {known}"
    )


def _refusal(
    port: DatasetPort, consumer_id: str, position: str, connection_arguments: str
) -> DriverAliveError:
    words = ("forget-consumer", port.uri, "--consumer", consumer_id, "--proven-dead", "--yes")
    typed = command_line(*words, connection_arguments=connection_arguments)
    return DriverAliveError(
        f"consumer {consumer_id!r} of {port.uri}, {position}, may run: one that runs writes its "
        f"position every {lasted(REFRESH_SECONDS)}, and cleanup would take what it reads. Stop its "
        f"stream. When no driver of it runs, type: {typed}"
    )


def _result(
    port: DatasetPort, consumer_id: str, sentence: str, plan: tuple[Write, ...] = ()
) -> RepairResult:
    return RepairResult(
        action=Action.CONSUMER,
        uri=port.uri,
        query_id=consumer_id,
        sentence=sentence,
        changed=not plan,
        version=port.version,
        dry_run=bool(plan),
        writes=plan,
    )
