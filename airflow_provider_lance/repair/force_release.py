"""A claim and a release by hand: a known owner gives the query up, or nothing changes."""

from __future__ import annotations

from airflow_provider_lance.exceptions import CommitStateUnknownError, FencedError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import NO_EPOCH, Driver, QueryState, Watermark
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.repair.preconditions import Preconditions, named
from airflow_provider_lance.repair.result import Write, planned_writes

__all__ = ["force_release"]

_NO_ANSWER = OnHistoryGap()
_NOTHING_ACCEPTED = OnRestore()


def force_release(
    preconditions: Preconditions,
    driver: Driver,
    checkpoint: Checkpoint,
    folded: Watermark | None,
    *,
    on_history_gap: OnHistoryGap = _NO_ANSWER,
    on_restore: OnRestore = _NOTHING_ACCEPTED,
) -> tuple[DatasetPort, QueryState, list[Write]]:
    """Take the query from its owner, bar what it may still send, fold, release; or plan that.

    Nothing is written if another driver claimed since the preconditions were read: Lance lets only
    one of two updates of the owner's key land, and the owner is read again before each attempt.

    :param driver: the driver to record as the owner; its ``run_id`` must be unique.
    :param folded: the watermark that a plan shows; ``None`` for a new generation.
    :returns: the query after the release, and the handle that shows it; with ``dry_run`` the query
        as it is, and what would be written.
    :raises FencedError: another driver claimed before or in the middle.
    :raises HistoryGapError: versions are missing that the checkpoint and the answer do not cover.
    :raises TransientError: the store refused too often. ``driver`` may remain the owner,
        ``active``; what was proven or answered for is then folded, and only a release remains to be
        done.
    """
    port, query_id = preconditions.port, preconditions.query_id
    if preconditions.dry_run:
        plan = planned_writes(port, preconditions.state, driver, folded)
        return port, preconditions.state, plan
    expected = preconditions.owner
    policy = CommitPolicy(
        new_generation=folded is None,
        on_history_gap=on_history_gap,
        on_restore=on_restore,
        backoff=preconditions.backoff,
    )

    def still_so(step: Failpoint) -> None:
        if step is not Failpoint.CLAIM_OPENED:
            return
        owner = _state(session.port, query_id).owner
        if owner and owner.driver == driver:
            return  # an earlier attempt landed, and its answer came late
        if owner != expected:
            raise _taken(session.port, query_id)

    port = port.latest()
    if _state(port, query_id).owner != expected:
        raise _taken(port, query_id)
    session = DriverSession(port, query_id, checkpoint, policy, on_step=still_so)
    session.prepare()
    session.identify(driver)
    try:
        session.claim(NO_EPOCH)
    except FencedError as error:
        raise _taken(port.latest(), query_id) from error
    claimed = session.owner
    assert claimed is not None
    if session.release():
        return session.port, _state(session.port, query_id), []
    newest = port.latest()
    if _state(newest, query_id).owner != claimed:
        raise _taken(newest, query_id)
    raise CommitStateUnknownError(
        f"query {query_id!r} in {newest.uri} was claimed with token {claimed.token} and could not "
        "be released: the store refused too often. Nothing is lost; release it, or start the "
        "stream again"
    )


def _state(port: DatasetPort, query_id: str) -> QueryState:
    return decode_query(port.config, query_id, port.version)


def _taken(port: DatasetPort, query_id: str) -> FencedError:
    owner = _state(port, query_id).owner
    held = (
        f"token {owner.token} ({owner.state.value}) of {named(owner)} on host "
        f"{owner.driver.host or 'unknown'}, since {owner.time}"
        if owner
        else "no owner: its owner record is gone"
    )
    return FencedError(
        f"query {query_id!r} in {port.uri} was claimed meanwhile, and nothing was changed: it is "
        f"held by {held}. Check it again before you continue"
    )
