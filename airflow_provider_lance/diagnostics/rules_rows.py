"""Rules about the rows of the newest epochs: lost, or not as they are expected to be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

from airflow_provider_lance.diagnostics.catalogue_rows import (
    BRING_BACK,
    CORRECT_THE_ROWS,
    FAIL_AGAIN,
    LOOK_AT_THE_ROWS,
    RowCase,
)
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import command, finding
from airflow_provider_lance.diagnostics.findings import Finding, Step
from airflow_provider_lance.protocol.row_checks import RowChecks

__all__ = ["row_rules"]


def row_rules(evidence: Evidence, tolerance: Tolerance) -> Iterator[Finding]:
    """Yield findings if rows of the newest epochs were lost, or often miss an expectation; pure.

    The epochs are those of ``evidence.history``. Rows that the sink refused, and that no
    expectation names, count by themselves.
    """
    epochs = [each for each in evidence.history if each.generation == evidence.state.generation]
    checks = reduce(add, (each.checks for each in epochs), RowChecks())
    if checks.lost:
        lost = {each.epoch_id: each.checks.lost for each in epochs if each.checks.lost}
        yield finding(
            RowCase.LOST,
            {"lost": checks.lost, "epochs": lost},
            [Step(FAIL_AGAIN), Step(BRING_BACK)],
            of=evidence,
            count=checks.lost,
            epochs=", ".join(map(str, sorted(lost))),
        )
    rows = sum(each.rows for each in epochs) + checks.not_landed
    often = {
        name: each for name, each in checks.expectations.items() if each.share > tolerance.unmet
    }
    refused = checks.quarantined > tolerance.unmet * rows
    if not often and not refused:
        return
    steps = [Step(CORRECT_THE_ROWS + ".")]
    if checks.quarantined:
        steps.insert(0, Step(LOOK_AT_THE_ROWS, command(evidence, "quarantine")))
    numbers = [each.epoch_id for each in epochs]
    worst = sorted(often.items(), key=lambda each: -each[1].share)
    yield finding(
        RowCase.UNMET if often else RowCase.QUARANTINED,
        {**checks.to_json(), "rows": rows, "limit": tolerance.unmet},
        steps,
        of=evidence,
        first=min(numbers),
        last=max(numbers),
        unmet=", ".join(
            f"{name} by {each.unmet:,} of {each.met + each.unmet:,}" for name, each in worst
        ),
        count=checks.quarantined,
        rows=rows,
        limit=tolerance.unmet,
    )
