"""What a maintenance run found, did and left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_lance.maintenance.dataset_metrics import DatasetMetrics
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["Report", "summary_lines"]

_SHOWN = (
    "rows",
    "fragments",
    "smallFragments",
    "files",
    "bytes",
    "versions",
    "manifestBytes",
    "historyBytes",
    "uncoveredRows",
)


@dataclass
class Report(JsonRecord):
    """One run.

    ``done`` has the figures of each step that did something; ``skipped`` says why each other step
    was skipped.
    """

    uri: str
    before: DatasetMetrics
    after: DatasetMetrics
    dry_run: bool = False
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        return {
            "uri": self.uri,
            "dryRun": self.dry_run,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "done": self.done,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


def summary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines for a log: what each step did, then the numbers side by side."""
    what = "Would do" if report["dryRun"] else "Done"
    for step, figures in report["done"].items():
        told = " ".join(f"{name}={value}" for name, value in figures.items())
        yield f"{what}: {step}. {told}"
    for step, reason in report["skipped"].items():
        yield f"Skipped: {step}. {reason}"
    before, after = report["before"], report["after"]
    for name in _SHOWN:
        yield f"{name:>15} {before[name]:>15,} -> {after[name]:>15,}"
    yield f"{report['uri']} at version {after['version']}, {report['seconds']:.1f} s"
