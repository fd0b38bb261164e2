"""A station from its first round to its last: fight, judge, and at the end everything is there."""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.attack import fight
from tests.chaos.fight import Fight
from tests.chaos.judge import Verdict
from tests.chaos.plan import Attack, Control, RoundPlan, StationPlan, Store
from tests.chaos.scene import Scene
from tests.chaos.store import place
from tests.chaos.upkeep import Upkeep, between
from tests.support.s3 import s3_server

LAST = "the last round, in which all must arrive"


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round came to; ``wrong`` is empty if all was right."""

    station: int
    kind: str
    number: int
    attack: str
    what: str
    kills: int
    missed: int
    faults: Counter[str]
    ends: Counter[str]
    errors: Counter[str]
    upkeep: Counter[str]
    doubts: int
    epochs: int
    lost: int
    duplicated: int
    unreadable: int
    healthy: int
    seconds: float
    wrong: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all stations share; ``java`` are a JVM's options, ``interposer`` is a library."""

    folder: Path
    control: Control = Control.NONE
    java: str = ""
    interposer: str = ""
    keep: bool = False


def run(
    plan: StationPlan,
    bench: Bench,
    tell: Callable[[RoundResult], None],
    over: Callable[[], bool] = lambda: False,
) -> bool:
    """Run a station until its end, its first failure, or ``over``; return whether all was right.

    Its folder is kept if something was not.

    :param tell: called with each round's result.
    """
    folder = bench.folder / plan.name
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3_server()) if plan.store is Store.S3 else None
        where = stack.enter_context(place(plan, folder, server))
        scene = Scene(plan, folder, where, bench.control, bench.java, bench.interposer)
        stack.callback(scene.clear)
        fine = _rounds(scene, tell, over)
        if not fine or bench.keep:
            where.keep()
    if fine and not bench.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return fine


def _rounds(scene: Scene, tell: Callable[[RoundResult], None], over: Callable[[], bool]) -> bool:
    for plan in (*scene.plan.rounds, RoundPlan(-1, Attack.DRAIN, files=0)):
        if over():
            break
        result = _round(scene, plan)
        tell(result)
        if result.wrong:
            return False
    return True


def _round(scene: Scene, plan: RoundPlan) -> RoundResult:
    began, injected = time.monotonic(), scene.place.injected
    epochs = scene.epochs + scene.planned
    fought, upkeep = Fight(scene, plan), Upkeep(scene.place, plan.maintained, scene.gap)
    outcome = Verdict(scene.planned, 0, 0)
    try:
        # What earlier drivers left unread counts: a backlog makes no round better.
        scene.source.add(max(0, plan.files - scene.unread))
        between(scene.place, plan.between, gap=scene.gap)
        with scene.place.attacked(plan.faults), upkeep:
            fight(fought)
        scene.place.settle()
        outcome = scene.judge()
        fought.blame(outcome.wrong)
        fought.check(outcome)
    except Exception as error:
        fought.blame(f"{type(error).__name__}: {error}")
        (scene.folder / "failed.txt").write_text(traceback.format_exc())
    fought.blame(upkeep.unexpected)
    lost = fought.lost + outcome.lost
    unreadable = fought.unreadable + outcome.unreadable
    if lost or outcome.duplicated or unreadable or fought.healthy:
        counts = f"{lost} rows lost, {outcome.duplicated} duplicated"
        counts += ", unreadable" * bool(unreadable) + ", called healthy" * bool(fought.healthy)
        fought.wrong = f"{counts}. {fought.wrong}"
    if plan.number < 0 and scene.unread:
        fought.blame(f"{scene.unread} files have not arrived")
    return RoundResult(
        station=scene.plan.number,
        kind=f"{scene.plan.mode} {scene.plan.store}",
        number=plan.number,
        attack=f"{plan.attack}: {plan.point}" if plan.point else plan.attack,
        what=_what(plan),
        kills=fought.kills,
        missed=fought.missed,
        faults=scene.place.injected - injected,
        ends=Counter(end.manner.value for end in fought.ends),
        errors=Counter(end.error for end in fought.ends if end.error),
        upkeep=upkeep.outcomes,
        doubts=sum(end.doubts for end in fought.ends),
        epochs=scene.epochs + scene.planned - epochs,
        lost=lost,
        duplicated=outcome.duplicated,
        unreadable=unreadable,
        healthy=fought.healthy,
        seconds=time.monotonic() - began,
        wrong=fought.wrong,
        folder=str(scene.folder),
    )


def _what(plan: RoundPlan) -> str:
    if plan.number < 0:
        return LAST
    point = plan.point or (f"rival {plan.rival}" if plan.rival else "")
    times = f" ×{plan.occurrence}" if plan.occurrence > 1 else ""
    whom = f" {plan.whom}" if plan.attack in (Attack.KILL_AT, Attack.KILL_ANY) else ""
    how = ""
    if plan.attack is Attack.HOLD:
        how = f", {plan.meanwhile}" + ", suspended" * plan.suspended
    if plan.attack is Attack.RESTORE:
        how = ", under a driver" if plan.busy else f", {plan.cleaned} removed"
        how = f" of {plan.after} epochs{how}"
    return f"{plan.attack}{': ' + point if point else ''}{times}{whom}{how}"
