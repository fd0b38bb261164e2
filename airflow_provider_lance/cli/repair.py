"""``lance-stream release``, ``resolve`` and ``forget-consumer``: repairs that a person decides."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from airflow_provider_lance.cli.output import Exit, Output, Plan, asker, refuse_contradiction
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.repair import actions as repairing
from airflow_provider_lance.repair import consumers as repair_consumers
from airflow_provider_lance.repair.auto_cleanup import remove_auto_cleanup
from airflow_provider_lance.repair.config_values import mend_config
from airflow_provider_lance.repair.restores import accept_loss, bring_back
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.repair.rewind import rewind
from airflow_provider_lance.repair.set_aside import forget_topics, set_files_aside
from airflow_provider_lance.repair.sides import forget_side
from airflow_provider_lance.repair.start_over import start_over

__all__ = [
    "forget_consumer",
    "release",
    "resolve_auto_cleanup",
    "resolve_checkpoint",
    "resolve_config",
    "resolve_files",
    "resolve_gap",
    "resolve_restore",
    "resolve_rewind",
    "resolve_side",
    "resolve_topics",
]

_Repair = Callable[..., RepairResult]
"""Repairs a query of a dataset, given its handle and id, or returns what would be written."""


def release(arguments: Namespace, output: Output) -> int:
    """Release an owner whose driver is dead."""
    act = partial(repairing.release_owner, for_good=arguments.for_good)
    return _do(act, ["release"], arguments, output)


def resolve_gap(arguments: Namespace, output: Output) -> int:
    """Answer for the newest epoch in doubt."""
    if arguments.committed == arguments.missing:
        raise SpecError(
            "say what became of the epoch: either --committed (its rows are in the dataset) or "
            "--missing (they are not)"
        )
    repair = partial(
        repairing.resolve_gap,
        epoch=arguments.epoch,
        landed=arguments.committed,
        after_version=arguments.after_version,
    )
    return _do(repair, ["resolve", "gap"], arguments, output)


def resolve_checkpoint(arguments: Namespace, output: Output) -> int:
    """Record the checkpoint from which the query continues, in a new generation."""
    verb = ["resolve", "checkpoint"]
    if arguments.start_over:
        known = not (arguments.query_id and arguments.checkpoint)  # it may have lost all trace
        return _do(start_over, verb, arguments, output, known=known)
    if not arguments.checkpoint:
        raise SpecError("say one: --checkpoint LOCATION to continue from it, or --start-over")
    return _do(repairing.resolve_checkpoint, verb, arguments, output)


def resolve_files(arguments: Namespace, output: Output) -> int:
    """Set corrupt files of the checkpoint aside."""
    return _do(set_files_aside, ["resolve", "files"], arguments, output)


def resolve_topics(arguments: Namespace, output: Output) -> int:
    """Set the ids of the topics aside that a query has read."""
    return _do(forget_topics, ["resolve", "topics"], arguments, output)


def resolve_config(arguments: Namespace, output: Output) -> int:
    """Put removed config keys back."""
    known = not arguments.query_id  # the config may have no trace of it
    return _do(mend_config, ["resolve", "config"], arguments, output, known=known)


def resolve_auto_cleanup(arguments: Namespace, output: Output) -> int:
    """Switch off Lance's own auto-cleanup."""
    target = open_target(arguments)
    act = partial(remove_auto_cleanup, target.port)
    command = target.command("resolve", "auto-cleanup")
    return _carry_out(act, command, target, arguments, output)


def resolve_restore(arguments: Namespace, output: Output) -> int:
    """Bring epochs back that a restored version removed, or continue without them."""
    if arguments.bring_back == (arguments.accept is not None):
        raise SpecError(
            "say one: --bring-back, or --accept FIRST-LAST with the epochs to do without"
        )
    if arguments.bring_back:
        return _do(bring_back, ["resolve", "restore"], arguments, output)
    repair = partial(accept_loss, epochs=arguments.accept)
    return _do(repair, ["resolve", "restore"], arguments, output)


def resolve_side(arguments: Namespace, output: Output) -> int:
    """Let a side table begin again."""
    repair = partial(forget_side, name=arguments.name)
    return _do(repair, ["resolve", "side"], arguments, output)


def resolve_rewind(arguments: Namespace, output: Output) -> int:
    """Take table and checkpoint back to the end of an epoch."""
    if arguments.intact == (arguments.to_epoch is not None):
        raise SpecError("say one: --to-epoch N, or --intact for the newest version that is whole")
    repair = partial(rewind, to_epoch=arguments.to_epoch)
    return _do(repair, ["resolve", "rewind"], arguments, output)


def forget_consumer(arguments: Namespace, output: Output) -> int:
    """Remove a consumer's record."""
    refuse_contradiction(arguments)
    target = open_target(arguments)
    act = partial(
        repair_consumers.forget_consumer,
        target.port,
        arguments.consumer,
        proven_dead=arguments.proven_dead,
        connection_arguments=target.place.connection_arguments,
    )
    options = ["--consumer", arguments.consumer]
    options += ["--proven-dead"] if arguments.proven_dead else []
    command = target.command("forget-consumer", options=options)
    return _carry_out(act, command, target, arguments, output)


def _do(
    repair: _Repair, verb: list[str], arguments: Namespace, output: Output, *, known: bool = True
) -> int:
    target = open_target(arguments)
    query = target.query(arguments.query_id) if known else arguments.query_id
    act = partial(
        repair,
        target.port,
        query,
        by=asker(arguments),
        proven_dead=arguments.proven_dead,
        **target.look,
    )
    command = target.command(*verb, query=query, options=_typed(arguments, target))
    return _carry_out(act, command, target, arguments, output)


def _carry_out(
    act: _Repair, command: str, target: Target, arguments: Namespace, output: Output
) -> int:
    """Do what was typed with ``--yes``; otherwise show what would be done.

    :param command: what to type to have it done.
    """
    planned = target.place.ask(lambda: act(dry_run=True), target.places)
    if not (planned.writes or planned.moves):
        return _tell(planned, output)  # there is nothing to do
    plan = Plan(_lines(planned), command, planned.to_json())
    if getattr(arguments, "dry_run", False):
        plan.show(output)
        return _tell(planned, output) if output.json else Exit.HEALTHY
    if not arguments.yes:
        return plan.refuse(output)
    plan.show(output)
    return _tell(act(dry_run=False), output)


def _lines(planned: RepairResult) -> list[str]:
    lines = [f"{planned.sentence}, in {planned.uri}" if planned.writes else planned.sentence]
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
    if said.get("after_version") is not None:
        words += ["--after-version", str(said["after_version"])]
    flags = ("committed", "missing", "bring_back", "intact", "for_good", "start_over")
    words += [f"--{name.replace('_', '-')}" for name in flags if said.get(name)]
    if (epochs := said.get("accept")) is not None:
        words += ["--accept", f"{epochs[0]}-{epochs[1]}"]
    words += ["--name", said["name"]] if said.get("name") else []
    if said.get("to_epoch") is not None:
        words += [f"--to-epoch={said['to_epoch']}"]
    words += ["--checkpoint", target.place.checkpoint] if target.place.checkpoint else []
    words += ["--proven-dead"] if arguments.proven_dead else []
    return words + (["--by", arguments.by] if arguments.by else [])


def _tell(repaired: RepairResult, output: Output) -> int:
    if output.json:
        output.document({"done": repaired.changed} | repaired.to_json())
    else:
        output.say(f"{repaired.sentence[0].upper()}{repaired.sentence[1:]}.")
    return Exit.HEALTHY
