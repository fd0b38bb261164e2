"""The texts of findings about side tables."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code

__all__ = ["Say", "SideCase"]


class Say:
    """The texts of steps."""

    BRING_BACK = "If its rows must be back, take them from its own versions:"
    FOLDER_BACK = "If a backup has the side table, put its newest copy back at {side}."
    FORGET = (
        "Or, to continue without the rows that it had, which are lost then, let side table {name} "
        "begin again:"
    )
    REACHABLE = (
        "Let this host and the driver read {side}: its address, its network and its credentials."
    )
    VALUES_BACK = "Put the values back that the query's own drivers wrote into it:"


class SideCase(Case):
    """What ``rules_sides`` may find."""

    LOST = (
        Code.SIDE_TABLE_LOST,
        "Side table {name} of query {query}, at {side}, lacks rows that were committed: {lost}.",
        "It was dropped, recreated or restored. A start refuses it.",
    )
    UNREADABLE = (
        Code.SIDE_TABLE_UNREADABLE,
        "Side table {name} of query {query}, at {side}, cannot be read: {problem}.",
        "The store did not answer, or another tool wrote into its config.",
    )
