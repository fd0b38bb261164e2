"""Switch off Lance's own auto-cleanup, which may remove the versions that prove an epoch."""

from __future__ import annotations

from airflow_provider_lance.exceptions import CommitPreemptedError, CommitStateUnknownError
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import auto_cleanup
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["remove_auto_cleanup"]


def remove_auto_cleanup(
    port: DatasetPort, *, dry_run: bool = False, backoff: Backoff | None = None
) -> RepairResult:
    """Remove the settings from the dataset's config; a stream notices it at its next start.

    :raises TransientError: the store refused too often.
    """
    sent = False
    for attempt in backoff or Backoff():
        port = port.latest()
        settings = dict.fromkeys(sorted(auto_cleanup(port.config)))
        if not settings:
            said = "Lance's own auto-cleanup " + ("is off now" if sent else "was off already")
            return _result(port, said, changed=sent)
        sentence = f"{len(settings)} settings of Lance's own auto-cleanup removed"
        if dry_run:
            write = Write(port.version + 1, "switch off Lance's own auto-cleanup", settings)
            return _result(port, sentence, plan=(write,))
        try:
            return _result(port.commit(Configure(settings)), sentence, changed=True)
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            sent, attempt.error = True, error
    raise AssertionError("a backoff ends in its last error")


def _result(
    port: DatasetPort, sentence: str, *, changed: bool = False, plan: tuple[Write, ...] = ()
) -> RepairResult:
    return RepairResult(
        action=Action.AUTO_CLEANUP,
        uri=port.uri,
        query_id="",
        sentence=sentence,
        changed=changed,
        version=port.version,
        dry_run=bool(plan),
        writes=plan,
    )
