"""``lance-stream release`` and ``lance-stream resolve``: repairs that need a person's decision."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from airflow_provider_lance.cli.output import Exit, Output, Plan, asker
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.repair import actions as repairing
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.repair.set_aside import set_files_aside

__all__ = ["release", "resolve_checkpoint", "resolve_files", "resolve_gap"]

_Repair = Callable[[Target, str, bool], RepairResult]
"""Repairs a query of a dataset, or with ``dry_run`` returns what would be written."""


def release(arguments: Namespace, output: Output) -> int:
    """Release an owner whose driver is dead."""

    def repair(target: Target, query: str, dry_run: bool) -> RepairResult:
        return repairing.release_owner(
            target.port,
            query,
            by=asker(arguments),
            proven_dead=arguments.proven_dead,
            dry_run=dry_run,
            connection_arguments=target.place.connection_arguments,
            **target.look,
        )

    return _do(repair, ["release"], arguments, output)


def resolve_gap(arguments: Namespace, output: Output) -> int:
    """Answer for the newest epoch in doubt."""
    if arguments.committed == arguments.missing:
        raise SpecError(
            "say what became of the epoch: either --committed (its rows are in the dataset) or "
            "--missing (they are not)"
        )

    def repair(target: Target, query: str, dry_run: bool) -> RepairResult:
        return repairing.resolve_gap(
            target.port,
            query,
            arguments.epoch,
            arguments.committed,
            by=asker(arguments),
            after_version=arguments.after_version,
            proven_dead=arguments.proven_dead,
            dry_run=dry_run,
            connection_arguments=target.place.connection_arguments,
            **target.look,
        )

    return _do(repair, ["resolve", "gap"], arguments, output)


def resolve_checkpoint(arguments: Namespace, output: Output) -> int:
    """Record the checkpoint from which the query continues, in a new generation."""

    def repair(target: Target, query: str, dry_run: bool) -> RepairResult:
        return repairing.resolve_checkpoint(
            target.port,
            query,
            target.place.checkpoint or "",
            by=asker(arguments),
            storage_options=target.place.storage_options,
            connection_arguments=target.place.connection_arguments,
            proven_dead=arguments.proven_dead,
            dry_run=dry_run,
        )

    return _do(repair, ["resolve", "checkpoint"], arguments, output)


def resolve_files(arguments: Namespace, output: Output) -> int:
    """Set corrupt files of the checkpoint aside."""

    def repair(target: Target, query: str, dry_run: bool) -> RepairResult:
        return set_files_aside(
            target.port,
            query,
            by=asker(arguments),
            proven_dead=arguments.proven_dead,
            dry_run=dry_run,
            connection_arguments=target.place.connection_arguments,
            **target.look,
        )

    return _do(repair, ["resolve", "files"], arguments, output)


def _do(repair: _Repair, name: list[str], arguments: Namespace, output: Output) -> int:
    target = open_target(arguments)
    query = target.query(arguments.query_id)
    planned = repair(target, query, True)
    if not planned.writes:
        return _tell(planned, output)  # there is nothing to do
    words = [*name, target.uri, query, *_typed(arguments, target), "--yes"]
    command = command_line(*words, connection_arguments=target.place.connection_arguments)
    plan = Plan(_lines(planned), command, planned.to_json())
    if not arguments.yes:
        return plan.refuse(output)
    plan.show(output)
    return _tell(repair(target, query, False), output)


def _lines(planned: RepairResult) -> list[str]:
    lines = [f"{planned.sentence}, in {planned.uri}"]
    for write in planned.writes:
        lines.append(f"version {write.version}: {write.what}")
        lines += [
            f"  {name} = {value}" if value is not None else f"  {name} removed"
            for name, value in write.config.items()
        ]
    return lines + [f"file {path} becomes {to}" for path, to in planned.moves.items()]


def _typed(arguments: Namespace, target: Target) -> list[str]:
    said = vars(arguments)
    words = ["--epoch", str(said["epoch"])] if "epoch" in said else []
    words += [f"--{name}" for name in ("committed", "missing") if said.get(name)]
    words += ["--checkpoint", target.place.checkpoint] if target.place.checkpoint else []
    words += ["--proven-dead"] if arguments.proven_dead else []
    return words + (["--by", arguments.by] if arguments.by else [])


def _tell(repaired: RepairResult, output: Output) -> int:
    if output.json:
        output.document({"done": repaired.changed} | repaired.to_json())
    else:
        output.say(f"{repaired.sentence[0].upper()}{repaired.sentence[1:]}.")
    return Exit.HEALTHY
