"""The texts of findings about rows that did not land, or were not as expected."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code

__all__ = ["CORRECT_THE_ROWS", "LOOK_AT_THE_ROWS", "RowCase"]

LOOK_AT_THE_ROWS = "See the rows of the quarantine, with the reason of each."
CORRECT_THE_ROWS = (
    "Correct what writes the source. If the rows are right, correct the condition in the "
    "stream's expectations, and start the stream with it"
)


class RowCase(Case):
    """What ``rules_rows`` may find."""

    UNMET = (
        Code.EXPECTATION_UNMET,
        "Rows of query {query} do not meet its expectations in epochs {first} to {last}: {unmet}.",
        "The source changed, or a condition no longer fits it. More than {limit:.0%} of the rows "
        "count as often. The table is exact: each row did what its expectation's action says.",
    )
    QUARANTINED = (
        Code.EXPECTATION_UNMET,
        "{count:,} of {rows:,} rows of query {query} in epochs {first} to {last} went to the "
        "quarantine.",
        "The sink could not write them: a key is null, a value does not fit, or an envelope could "
        "not be taken off. More than {limit:.0%} of the rows count as often. They are in the "
        "quarantine and not in the table.",
    )
