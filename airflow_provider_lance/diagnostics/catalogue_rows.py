"""The texts of findings about rows that did not land, or were not as expected."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code

__all__ = ["BRING_BACK", "CORRECT_THE_ROWS", "FAIL_AGAIN", "LOOK_AT_THE_ROWS", "RowCase"]

LOOK_AT_THE_ROWS = "See the rows of the quarantine, with the reason of each."
CORRECT_THE_ROWS = (
    "Correct what writes the source. If the rows are right, correct the condition in the "
    "stream's expectations, and start the stream with it"
)

FAIL_AGAIN = (
    'Take "failOnDataLoss": "false" out of the source\'s options, and start the stream again: the '
    "next loss then stops it."
)
BRING_BACK = "If the rows are needed, write them from another source while the stream is stopped."


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
    LOST = (
        Code.SOURCE_LOST,
        "{count:,} offsets of the source of query {query} were gone before they could be read, and "
        "were passed over (epochs: {epochs}).",
        "The source removed records before the stream had read them, and runs with "
        "failOnDataLoss=false. The table lacks their rows, at most {count:,}: a compacted topic "
        "has fewer records than offsets.",
    )
