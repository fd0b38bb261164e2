"""The texts of findings about side tables."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code

__all__ = ["SideCase"]


class SideCase(Case):
    """What ``rules_sides`` may find."""

    LOST = (
        Code.SIDE_TABLE_LOST,
        "Side table {name} of query {query}, at {side}, lacks rows that were committed: {lost}.",
        "It was dropped, recreated or restored. A start refuses it. Bring it back: restore its "
        "newest version, or put the folder back. To go on without those rows, remove its key from "
        "the config of {uri}: the side table then begins empty.",
    )
    UNREADABLE = (
        Code.SIDE_TABLE_UNREADABLE,
        "Side table {name} of query {query}, at {side}, cannot be read: {problem}.",
        "The store did not answer, or another tool wrote into its config.",
    )
