"""The steps that give a query its own checkpoint back, or do without it."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from airflow_provider_lance.diagnostics.catalogue_checkpoint import Say
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.finding_builder import command, restart
from airflow_provider_lance.diagnostics.findings import Step
from airflow_provider_lance.protocol.model import OutputMode

__all__ = ["corrupt_files", "lost_checkpoint", "no_trace", "start_over"]

_ASIDE = ".not-mine"
_APPENDS = OutputMode.APPEND.effect


def lost_checkpoint(evidence: Evidence, otherwise: Callable[[], list[Step]]) -> list[Step]:
    """Return the steps of a query that has another checkpoint, an older one, or none.

    :param otherwise: the steps if there is no backup either.
    """
    owner, seen = evidence.state.owner, evidence.checkpoint
    assert owner is not None
    recorded, place = owner.driver.checkpoint_id, evidence.checkpoint_location.rstrip("/")
    own = [
        each.location
        for each in evidence.neighbours
        if each.id == recorded and each.planned >= evidence.newest_epoch
    ]
    home, lines = evidence.home, []
    if own:
        taken = bool(seen and (seen.id or seen.planned >= 0))
        other = home.location.rstrip("/") if home else ""
        moves = [(place, f"{place}{_ASIDE}")] if taken else []
        moves.append((own[0], place))
        if taken and other == own[0]:
            moves.append((f"{place}{_ASIDE}", other))
        text = Say.MOVE_BACK.format(recorded=recorded, found=own[0])
        return [Step(text, _moved(moves)), restart(evidence)]
    if home and _is_away(evidence, home.location):
        typed = _moved([(place, home.location.rstrip("/"))])
        lines.append(Step(Say.SEND_HOME.format(other=home.query_id), typed))
    copy = Say.COPY.format(recorded=recorded, watermark=evidence.newest_epoch, location=place)
    return [*lines, Step(copy), *otherwise(), restart(evidence)]


def _is_away(evidence: Evidence, home: str) -> bool:
    """Return whether a folder beside the checkpoint's place is seen to have no checkpoint."""
    place, home = evidence.checkpoint_location.rstrip("/"), home.rstrip("/")
    beside = place.rpartition("/")[0] == home.rpartition("/")[0]
    return beside and all(each.location != home for each in evidence.neighbours)


def corrupt_files(evidence: Evidence, safe: bool) -> list[Step]:
    """Return the steps of files that Spark cannot start from, or that are not what was committed.

    :param safe: whether our own repair is proven.
    """
    if safe:
        typed = command(evidence, "resolve", "files", options=("--yes",))
        return [Step(Say.FILES, typed, alone=True), restart(evidence)]
    backup = Step(Say.FILE_BACK.format(location=evidence.checkpoint_location))
    return [backup, *start_over(evidence), restart(evidence)]


def start_over(evidence: Evidence, text: str = Say.START_OVER) -> list[Step]:
    """Return the step that begins again with an empty checkpoint, if side tables allow."""
    if evidence.sides:
        return []
    effect = OutputMode(evidence.history[0].mode).effect if evidence.history else _APPENDS
    if evidence.cleaned_up and not (effect.replaces_rows or effect.replaces_all):
        return [Step(Say.NEW_QUERY)]
    options = ("--start-over", "--yes")
    typed = command(evidence, "resolve", "checkpoint", options=options)
    return [Step(text, typed, alone=True)]


def no_trace(evidence: Evidence, committed: int) -> list[Step]:
    """Return the steps of a dataset that has no trace of a checkpoint's epochs."""
    without = restart(evidence, '{"onCheckpointChange": "newGeneration"}')
    return [
        Step(Say.RIGHT_TASK),
        *start_over(evidence, Say.ALL_AGAIN),
        Step(f"{Say.WITHOUT.format(committed=committed)} {without.text}", without.command),
        restart(evidence),
    ]


def _moved(moves: list[tuple[str, str]]) -> str:
    """Return one line that moves folders, by the tool of their store."""
    words = {"s3": ("aws", "s3", "mv", "--recursive"), "gs": ("gcloud", "storage", "mv")}
    line = []
    for source, target in moves:
        scheme = source.partition("://")[0].replace("s3a", "s3") if "://" in source else ""
        tool = words.get(scheme, ("mv", "-T"))
        line.append(shlex.join([*tool, _plain(source), _plain(target)]))
    return " && ".join(line)


def _plain(place: str) -> str:
    return place.replace("s3a://", "s3://", 1).removeprefix("file://")
