"""What a claim and a release by hand would write, for whoever has to agree to it first."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_lance.protocol.codec import (
    encode_owner,
    encode_stop,
    fold_updates,
    key,
)
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
    utc_now,
)
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import newest_done
from airflow_provider_lance.repair.result import Write

__all__ = ["planned_writes"]


def planned_writes(
    port: DatasetPort, state: QueryState, driver: Driver, watermark: Watermark | None
) -> list[Write]:
    """Return what a claim and a release would write from this version on.

    Times, and the versions if somebody else commits first, are those of the moment.

    :param watermark: what is folded; ``None`` for a new generation.
    """
    owner, version = state.owner, port.version
    assert owner is not None
    token = owner.token + 1
    claim = Owner(
        token, OwnerState.ACTIVE, state.generation + (watermark is None), driver, utc_now()
    )
    release = replace(claim, state=OwnerState.RELEASED)
    owner_key, no_stop = key("owner", state.query_id), encode_stop(state.query_id, None)
    asked = state.stop_token
    folded = (watermark.epoch, watermark.committed_at) if watermark else (NO_EPOCH, None)
    done = newest_done(state, watermark) if watermark else None
    claiming = {
        **fold_updates(state.query_id, folded[0], version, folded[1], done),
        owner_key: encode_owner(claim),
        **(no_stop if asked == token else {}),
    }
    barrier = owner.state is OwnerState.ACTIVE
    last = version + 1 + barrier
    releasing = {
        **fold_updates(state.query_id, folded[0], last, folded[1], done),
        owner_key: encode_owner(release),
        **(no_stop if asked is not None and asked < token else {}),
    }
    writes = [Write(version + 1, f"claim: the owner becomes token {token}, active", claiming)]
    if barrier:
        writes.append(Write(last, "barrier: what the old owner may still send cannot land", {}))
    writes.append(
        Write(last + 1, f"release: fold the watermark, token {token} released", releasing)
    )
    return writes
