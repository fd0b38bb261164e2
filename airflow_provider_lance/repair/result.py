"""The result of a repair: what it did, or what it would write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_provider_lance.protocol.codec import (
    encode_owner,
    encode_stop,
    fold_updates,
    key,
)
from airflow_provider_lance.protocol.json_codec import JsonRecord
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

__all__ = ["Action", "RepairResult", "Write", "planned_writes"]


class Action(StrEnum):
    """The repairs; only ``fold`` and ``release`` run without a person's decision."""

    FOLD = "fold"
    RELEASE = "release"
    GAP = "gap"
    CHECKPOINT = "checkpoint"
    FILES = "files"
    CONSUMER = "consumer"
    AUTO_CLEANUP = "auto-cleanup"
    CONFIG = "config"
    RESTORE = "restore"
    REWIND = "rewind"
    START_OVER = "start-over"
    SIDE = "side"
    TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class Write(JsonRecord):
    """One new version of the dataset.

    ``config`` is what it sets, ``None`` for what it removes; a barrier sets nothing. Only a restore
    and an append of epochs change rows. ``version`` is exact unless another writer commits first.
    """

    version: int
    what: str
    config: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RepairResult(JsonRecord):
    """The result: whether anything was written, and the query's state now.

    With ``dry_run`` nothing was written, and ``writes`` says what would be; ``version``,
    ``watermark``, ``token`` and ``generation`` are then those that were found. The last three are
    ``None`` where no driver was claimed for: a consumer was forgotten, whose id is ``query_id``, or
    keys of the config were removed or put back. ``moves`` are files of the checkpoint that get
    another name, old name first.
    """

    action: Action
    uri: str
    query_id: str
    sentence: str
    changed: bool
    version: int
    watermark: int | None = None
    token: int | None = None
    generation: int | None = None
    dry_run: bool = False
    writes: tuple[Write, ...] = ()
    moves: Mapping[str, str] = field(default_factory=dict)


def planned_writes(
    port: DatasetPort, state: QueryState, driver: Driver, watermark: Watermark | None
) -> list[Write]:
    """Return what a claim and a release would write from this version on.

    Times are the current ones; versions differ if another writer commits first.

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
