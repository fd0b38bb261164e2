"""Put back config values of a query that another tool or a person wrote over or removed."""

from __future__ import annotations

from typing import Unpack

from airflow_provider_lance.diagnostics.collect_proof import Versions, contradictions
from airflow_provider_lance.diagnostics.traces import UNDERIVED, kept_config
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    PreconditionError,
    ProtocolVersionError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp, key
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.protocol.sides import decode_sides, side_key
from airflow_provider_lance.protocol.watermark import versions_of
from airflow_provider_lance.repair.preconditions import RepairOptions
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["mend_config"]


def mend_config(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Put back what the config had before another tool or a person changed it.

    A value is wrong if no version of the package writes it, or if it names an epoch that the
    versions refute. The value that the newest older version had instead is put back; drivers write
    nothing over a wrong value, so it is the right one. Where no older version is left, a value that
    can be derived is removed. Keys that were removed are put back
    likewise.

    :raises PreconditionError: it is not proven what the value was.
    :raises ProtocolVersionError: a newer package wrote it.
    :raises TransientError: the store refused too often.
    """
    sent = False
    for attempt in options.get("backoff") or Backoff():
        port = port.latest()
        wrong = _wrong(port, query_id)
        if not wrong and not sent:
            return _put_back(port, query_id, **options)
        updates = {name: _before(port, query_id, name) for name in wrong}
        sentence = f"{', '.join(sorted(updates)) or 'the config'} of query {query_id!r} as before"
        if options.get("dry_run"):
            write = Write(port.version + 1, "put the query's values back", updates)
            return _result(port, query_id, sentence, plan=(write,))
        try:
            landed = port.commit(Configure(updates)) if updates else port
            return _result(landed, query_id, sentence, changed=True)
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            sent, attempt.error = True, error
    raise AssertionError("a backoff ends in its last error")


def _put_back(port: DatasetPort, query_id: str, **options: Unpack[RepairOptions]) -> RepairResult:
    """Write the keys that the newest version with this query's owner has, and no other value.

    A driver that still runs is the recorded owner again, so nothing refuses it.

    :raises PreconditionError: it is not proven which keys were removed.
    :raises TransientError: the store refused too often.
    """
    sent = False
    for attempt in options.get("backoff") or Backoff():
        port = port.latest()
        if decode_query(port.config, query_id, port.version).owner is not None:
            return _result(port, query_id, "the config has the query's owner", changed=sent)
        kept = kept_config(port, query_id)
        if kept is None:
            raise PreconditionError(
                f"no recent version of {port.uri} shows which config keys of query {query_id!r} "
                "were removed, so nothing is put back"
            )
        sentence = (
            f"{len(kept.keys)} config keys of query {query_id!r} are again what version "
            f"{kept.version} had"
        )
        if options.get("dry_run"):
            write = Write(port.version + 1, "put the query's config keys back", kept.keys)
            return _result(port, query_id, sentence, plan=(write,))
        try:
            landed = port.commit(Configure(dict(kept.keys)))
            return _result(landed, query_id, sentence, changed=True)
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            sent, attempt.error = True, error
    raise AssertionError("a backoff ends in its last error")


def _result(
    port: DatasetPort,
    query_id: str,
    sentence: str,
    *,
    changed: bool = False,
    plan: tuple[Write, ...] = (),
) -> RepairResult:
    return RepairResult(
        action=Action.CONFIG,
        uri=port.uri,
        query_id=query_id,
        sentence=sentence,
        changed=changed,
        version=port.version,
        dry_run=bool(plan),
        writes=plan,
    )


def _names(port: DatasetPort, query_id: str) -> list[str]:
    words = ("owner", "lastEpoch", "lastEpochVersion", "lastEpochTime", "lastDone", "stop")
    own = {key(word, query_id) for word in (*words, "stopNote")}
    sides = side_key(query_id, "")
    return [name for name in port.config if name in own or name.startswith(sides)]


def _wrong(port: DatasetPort, query_id: str) -> list[str]:
    """Return the keys whose values cannot be, sorted.

    :raises ProtocolVersionError: a newer package wrote one of them.
    """
    wrong = [each for each in _names(port, query_id) if not _fits(port, query_id, each)]
    if wrong:
        return sorted(wrong)
    state = decode_query(port.config, query_id, port.version)
    if contradictions(Versions(port, query_id), state, (), None):
        return [key("lastEpoch", query_id)]
    if state.owner and state.owner.state is OwnerState.RELEASED:
        later = (
            decode_stamp(properties or {}, query_id, version)
            for version, properties in versions_of(port, state.folded_version)
        )
        if any(each and each.generation == state.generation for each in later):
            return [key("owner", query_id)]  # no driver commits after its release
    return []


def _fits(port: DatasetPort, query_id: str, name: str) -> bool:
    """Return whether a key's value is one that the package writes."""
    alone = {name: port.config[name]}
    try:
        decode_query(alone, query_id, port.version)
        decode_sides(alone, query_id)
    except ProtocolVersionError as error:
        if error.newer:
            raise
        return False
    return True


def _before(port: DatasetPort, query_id: str, name: str) -> str | None:
    """Return the value that a key had before the wrong one; ``None`` to remove it.

    :raises PreconditionError: no older version shows it, and nothing else proves it.
    """
    wrong = port.config[name]
    for version, properties in versions_of(port, 0):
        then = port.at(version) if properties is not None else None
        if then is None:
            break
        value = then.config.get(name)
        if value != wrong and (value is None or _fits(then, query_id, name)):
            return value
    if name in {key(word, query_id) for word in UNDERIVED}:
        raise PreconditionError(
            f"no version of {port.uri} shows what {name!r} was before it became {wrong!r}: give "
            "the stream another query_id and checkpoint_location, and a new table"
        )
    return None
