"""The dataset's schema under a running driver: columns that it adds, and changes by others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    SchemaMismatchError,
)
from airflow_provider_lance.protocol.added_columns import AddedColumns, encode_added
from airflow_provider_lance.protocol.chain import Chain
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.protocol.ownership import Ownership
from airflow_provider_lance.protocol.port import AddColumns
from airflow_provider_lance.protocol.watermark import versions_of

__all__ = ["add_columns", "refuse_other_layout"]

log = logging.getLogger(__name__)


def refuse_other_layout(chain: Chain) -> None:
    """Raise :class:`SchemaMismatchError` if others changed the schema since this driver started."""
    if chain.port.layout != chain.layout:
        raise SchemaMismatchError(
            f"the schema of {chain.port.uri} was changed while query {chain.query_id!r} was "
            f"running (seen at version {chain.port.version}); nothing of this epoch was "
            "committed. Start it again: the stream's columns are then checked against the new "
            "schema. Columns that another stream adds are filled with null with "
            "missingColumns=null"
        )


def add_columns(
    ownership: Ownership, epoch_id: int, columns: Any, types: Mapping[str, str]
) -> None:
    """Add columns as the owner; see :meth:`.epoch_plan.EpochPlan.add_columns`."""
    chain = ownership.chain
    assert chain.owner is not None
    added = AddedColumns(
        chain.query_id,
        epoch_id,
        chain.owner.generation,
        chain.owner.token,
        ownership.run_id,
        utc_now(),
        dict(types),
    )
    stamp = encode_added(added)
    for attempt in ownership.policy.backoff:
        # 1. The newest version must have this driver's schema, and this owner.
        chain.refresh(strictly=True)
        ownership.ledger.refuse_if_fenced()
        refuse_other_layout(chain)
        # 2. One commit. An epoch that was based on the older schema can no longer land after it.
        ownership.doubt(True)
        before = chain.port.version
        try:
            slow = chain.send(AddColumns(columns), stamp)
            landed = not slow or _is_newest(chain)
            attempt.error = None if landed else CommitPreemptedError(f"{added} below the newest")
        except CommitPreemptedError as error:
            landed, attempt.error = False, error
        except CommitStateUnknownError as error:
            if chain.broken:
                raise
            attempt.error = error
            landed = _has_landed(ownership, stamp, before)
        ownership.doubt(False)
        if landed:
            chain.adopt_layout()
            log.info("Added columns. %s columns=%s", ownership, added.columns)
            return


def _is_newest(chain: Chain) -> bool:
    """Return whether the newest version has the schema of the one that was just committed."""
    made = chain.port.layout
    chain.reopen()
    return chain.port.layout == made


def _has_landed(ownership: Ownership, stamp: Mapping[str, str], after: int) -> bool:
    """Make sure that the commit cannot land late; return whether it made the newest schema.

    :raises FencedError: a newer owner holds the query.
    """
    chain, ledger = ownership.chain, ownership.ledger
    chain.reopen()
    ledger.refuse_if_fenced()
    ownership.bar()
    ledger.refuse_if_fenced()
    for version, properties in versions_of(chain.port, after):
        if properties is not None and stamp.items() <= properties.items():
            made = chain.port.at(version)
            return made is not None and made.layout == chain.port.layout
    return False
