"""What a repairing did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_lance.maintenance.dataset_metrics import camel

__all__ = ["Action", "RepairResult", "Write"]


class Action(StrEnum):
    """The five things that are repaired; two of them only because somebody said so."""

    FOLD = "fold"
    RELEASE = "release"
    GAP = "gap"
    CHECKPOINT = "checkpoint"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Write:
    """One new version of the dataset; none of these touches a row.

    ``config`` is what it sets, ``None`` for what it removes; a barrier sets nothing. ``version`` is
    exact unless somebody else commits first.
    """

    version: int
    what: str
    config: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result: whether anything was written, and how the query stands now.

    With ``dry_run`` nothing was, and ``writes`` says what would be; ``version``, ``watermark``,
    ``token`` and ``generation`` are then those that were found. ``moves`` are files of the
    checkpoint that get another name, the old one first.
    """

    action: Action
    uri: str
    query_id: str
    sentence: str
    changed: bool
    version: int
    watermark: int
    token: int | None
    generation: int
    dry_run: bool = False
    writes: tuple[Write, ...] = ()
    moves: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        document = {camel(name): value for name, value in asdict(self).items()}
        return document | {"action": self.action.value, "writes": [asdict(w) for w in self.writes]}
