"""Put a query's config keys back that another tool or a person removed."""

from __future__ import annotations

from typing import Unpack

from airflow_provider_lance.diagnostics.traces import kept_config
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    PreconditionError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.repair.preconditions import RepairOptions
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["put_config_back"]


def put_config_back(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Write the keys that the newest version with this query's owner has, and no other value.

    A driver that still runs is the recorded owner again, so nothing refuses it.

    :param checkpoint_location: as every repair takes it; not read here.
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
