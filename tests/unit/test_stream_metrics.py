"""From a check to the samples for Prometheus."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.metrics import METRICS, Sample, samples
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.supervision.query_state import OperatorState, QueryState

URI = "s3://KEY:SECRET@bucket/orders.lance"
OLD = 8 * 86_400.0


def status(query_id: str, **more: object) -> Status:
    given = {"state": "stopped", "sentence": "", "healthy": True, "watermark": 3, "version": 4}
    return Status(uri=URI, query_id=query_id, **{**given, **more})  # type: ignore[arg-type]


def report(*statuses: Status, findings: tuple[Finding, ...] = ()) -> CheckReport:
    return CheckReport(URI, 4, "2026-01-01T00:00:00+00:00", findings, statuses)


def shown(made: CheckReport, **more: bool) -> set[str]:
    names = "lance_stream_watermark_epoch"
    return {each.labels[1] for each in samples(made, **more) if each.name == names}


def test_a_label_holds_no_credentials() -> None:
    uris = {each.labels[0] for each in samples(report(status("orders")))}
    assert uris == {"s3://bucket/orders.lance"}


def test_queries_of_long_ago_are_left_out_unless_something_is_wrong_with_them() -> None:
    made = report(
        status("new", owner_state="released", epoch_age_seconds=5.0),
        status("old", owner_state="released", epoch_age_seconds=OLD),
        status("held", owner_state="active", epoch_age_seconds=OLD),
        status("broken", owner_state="released", epoch_age_seconds=OLD),
        findings=(
            Finding(Code.CHECKPOINT_MISSING, "", query_id="broken"),
            Finding(Code.HEALTHY, "", query_id="old"),
        ),
    )
    assert shown(made) == {"new", "held", "broken"}
    assert shown(made, all_queries=True) == {"new", "old", "held", "broken"}


def test_several_findings_of_one_code_are_one_sample() -> None:
    twice = Finding(Code.ORPHANED_FILES, "")
    worse = Finding(Code.ORPHANED_FILES, "", raised=Severity.WARNING)
    made = list(samples(report(status("orders"), findings=(twice, twice, worse))))
    assert len({each.labels for each in made if each.name == "lance_stream_finding"}) == 2
    keys = [(each.name, each.labels) for each in made]
    assert len(keys) == len(set(keys)), "Prometheus refuses a page that says something twice"
    assert Sample("lance_stream_worst_severity", ("s3://bucket/orders.lance", ""), 2) in made


def test_the_state_of_a_stateful_query_has_samples() -> None:
    kept = QueryState((OperatorState("dedupe", 21, 8416, 2), OperatorState("join", 4, 100, 1)))
    made = samples(report(status("orders", query_state=kept)))
    found = {each.name: each.value for each in made if each.labels[1:] == ("orders",)}
    assert found["lance_stream_state_rows"] == 25
    assert found["lance_stream_state_bytes"] == 8516
    assert found["lance_stream_too_late_rows_total"] == 3


def test_every_name_is_declared_once() -> None:
    names = [each.name for each in METRICS]
    assert len(names) == len(set(names))
    assert all(each.counter == each.name.endswith("_total") for each in METRICS)
