"""What every finding's steps must be: commands that are whole, and that do more than look."""

from __future__ import annotations

import re
import shlex

from airflow_provider_lance.cli.main import build_parser
from airflow_provider_lance.diagnostics.findings import Finding, Severity

__all__ = ["refuse_bad_advice"]

_PLACEHOLDER = re.compile(r"<[a-z][\w -]*>|…|\.\.\.")
_LOOKS = re.compile(r"lance-stream (check|status|epochs|watch)\b|--dry-run\b")


def refuse_bad_advice(finding: Finding) -> None:
    """Assert the rule of advice for one finding."""
    if finding.severity < Severity.WARNING:
        return
    assert finding.steps, f"{finding.code}: nothing to do: {finding.summary}"
    for step in finding.steps:
        assert step.text or step.command
        assert not _PLACEHOLDER.search(step.command), f"{finding.code}: not whole: {step.command}"
        said = f"{step.text} {step.command}"
        assert not _LOOKS.search(said), f"{finding.code}: only looks: {said}"
        if step.command.startswith("lance-stream "):
            _parses(step.command)


def _parses(command: str) -> None:
    build_parser().parse_args(shlex.split(command)[1:])
    changes = not command.startswith("lance-stream quarantine ")  # lists the rows to mend
    assert "--yes" in command or not changes, f"it would only show its plan: {command}"
