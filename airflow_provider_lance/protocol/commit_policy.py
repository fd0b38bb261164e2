"""What one driver may choose about its commits."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_lance.protocol.answers import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.clock import Clock, now

__all__ = ["CommitPolicy"]


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """What a user may choose about commits; the defaults are the protocol's."""

    watermark_every: int = 10
    new_generation: bool = False
    on_history_gap: OnHistoryGap = OnHistoryGap()
    on_restore: OnRestore = OnRestore()
    backoff: Backoff = Backoff()
    fresh_seconds: float = 60.0
    """How long ago the store may have been looked at; cleanup must keep versions much longer."""
    slow_seconds: float = 2.0
    """A commit that took longer may have landed under a number that a cleanup had freed."""
    clock: Clock = now
    barrier: bool = True
    """Off only in the experiment that shows what the barrier is for."""
    chain_proof: bool = True
    """Off only in the experiment that shows what the proof of the chain is for."""
