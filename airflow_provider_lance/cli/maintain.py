"""``lance-stream optimize`` and ``lance-stream cleanup``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from airflow_provider_lance.cli.output import Exit, Output, Plan, refuse_contradiction
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import Report, maintain, summary_lines

__all__ = ["cleanup", "optimize"]

_COMPACTION = {
    "target_rows": "target_rows_per_fragment",
    "max_source_fragments": "max_source_fragments",
    "max_source_rows": "max_source_rows",
    "max_source_bytes": "max_source_bytes",
}
_PLAIN = {
    "min_small_fragments": "minSmallFragments",
    "min_uncovered_rows": "minUncoveredRows",
    "older_than": "olderThan",
    "retain_versions": "retainVersions",
    "min_old_versions": "minOldVersions",
    "delete_rate_limit": "deleteRateLimit",
    "consumer_retention": "consumerRetention",
    "delete_unverified": "deleteUnverified",
    "deadline": "deadline",
}


def optimize(arguments: Namespace, output: Output) -> int:
    """Compact and refresh indices."""
    return _run("optimize", ("compact", "index"), arguments, output)


def cleanup(arguments: Namespace, output: Output) -> int:
    """Remove old versions; and old files that no version references, however few versions go."""
    return _run("cleanup", ("cleanup",), arguments, output)


def _run(name: str, steps: Sequence[str], arguments: Namespace, output: Output) -> int:
    refuse_contradiction(arguments)
    given = _given(steps, arguments)
    MaintenanceOptions.parse(given)  # before the dataset is opened
    target = open_target(arguments)
    dry_run = not arguments.yes
    act = partial(_maintain, target, given | {"dryRun": dry_run}, output)
    report = target.place.ask(act) if dry_run else act()
    if arguments.yes or arguments.dry_run:
        if output.json:
            output.document(report.to_json())
        else:
            for line in summary_lines(report.to_json()):
                output.say(line)
        return Exit.HEALTHY
    lines = list(summary_lines(report.to_json()))
    command = target.command(name, options=_typed(arguments))
    return Plan(lines, command, report.to_json()).refuse(output)


def _given(steps: Sequence[str], arguments: Namespace) -> dict[str, Any]:
    said = vars(arguments)
    compaction = {
        word: said[name] for name, word in _COMPACTION.items() if said.get(name) is not None
    }
    plain = {word: said[name] for name, word in _PLAIN.items() if said.get(name) is not None}
    if "cleanup" in steps:  # a person who types it wants old files removed, too
        plain = {"minOldVersions": 0} | plain
    return {"steps": list(steps)} | plain | ({"compaction": compaction} if compaction else {})


def _typed(arguments: Namespace) -> list[str]:
    """Return the typed options, for the command that executes the plan."""
    said = vars(arguments)
    words: list[str] = []
    for name in (*_COMPACTION, *_PLAIN):
        value, flag = said.get(name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def _maintain(target: Target, given: dict[str, Any], output: Output) -> Report:
    terminal = sys.stderr.isatty() and not output.json

    def progress(done: int, tasks: int) -> None:
        if terminal:
            output.note(f"compacting: task {done} of {tasks}")

    options = MaintenanceOptions.parse(given)
    return maintain(target.port, options, target.place.storage_options, on_progress=progress)
