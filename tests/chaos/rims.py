"""Rounds at the protocol's rims: what the sink trusts is taken away under it.

Each ends in right rows or in a named error, and never in rows that are missing without a word.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.cleanup import clean_up
from tests.chaos import others
from tests.chaos.fight import Fight
from tests.chaos.life import End, Life, Manner
from tests.chaos.others import Restored
from tests.chaos.plan import Cleaned, Meanwhile, Whom
from tests.chaos.rival import take_over
from tests.chaos.scene import FOREVER
from tests.chaos.upkeep import ALONE

GAPS = {"HistoryGapError", "CommitStateUnknownError"}
"""Right where all evidence of a commit was removed."""

HELD_SECONDS = 4.0
"""So long waits a manifest: longer than a driver takes a commit's outcome for certain."""

FRESH_SECONDS = 4.0
"""How old a driver's handle may be where its dataset is replaced: a minute is too long here."""

SOON_SECONDS = 45.0
"""A driver whose dataset is not its own any more has ended by then."""


def hold(fight: Fight) -> None:
    """Hold a manifest back while others take its number and remove all that is old."""
    scene, plan = fight.scene, fight.plan
    life = scene.driver(point=plan.point, occurrence=plan.occurrence, hold=True)
    committed = False
    with scene.place.holding(life):
        if fight.until(life, lambda: life.held):
            committed = _overtake(fight, life)
        else:
            fight.missed += 1
    fenced = {Manner.FENCED} if plan.meanwhile is Meanwhile.RIVAL else set()
    finished = set() if committed else {Manner.FINISHED}
    fight.end(life, *fenced, *finished, errors=GAPS)
    fight.answer_gap()


def _overtake(fight: Fight, life: Life) -> bool:
    """Let a manifest's number be taken and freed; return whether its epoch was committed."""
    scene, plan, began = fight.scene, fight.plan, time.monotonic()
    if plan.suspended:
        life.suspend()
    committed = plan.meanwhile is Meanwhile.RIVAL and take_over(scene)
    others.commit(scene.place, 3)
    others.clean_everything(scene.place)
    time.sleep(max(0.0, began + HELD_SECONDS - time.monotonic()))
    if plan.suspended:
        life.go_on()
    return committed


def clean(fight: Fight) -> None:
    """Let somebody remove everything old beside a busy driver."""
    scene, plan = fight.scene, fight.plan
    with others.cleaning(scene.place) as done:
        life = scene.driver(point=plan.point, occurrence=plan.occurrence, whom=plan.whom)
        fight.end(life, Manner.KILLED, Manner.FINISHED, errors=GAPS)
    fight.missed += not done["versions"]
    fight.answer_gap()


def recreate(fight: Fight) -> None:
    """Drop and recreate the dataset under a busy driver, which must end and hide no row."""
    scene, since = fight.scene, fight.scene.committed
    life = scene.driver(FOREVER, fresh=FRESH_SECONDS)
    if not fight.progressed(life, fight.plan.after, since):
        fight.end(life)
        return
    life.suspend()  # only so that both happen between two of its requests
    others.recreate(scene.place)
    life.go_on()
    end = _must_end(fight, life, "its dataset was dropped and made anew")
    if end.manner is Manner.GAVE_UP:  # by an error that may pass: then the next start must tell
        end = fight.end(scene.driver(), Manner.REFUSED)
    # A commit that was on its way, or in an object store an append since the last look, may have
    # landed on the new dataset; then the error says which version brings it back.
    back = re.search(r"version=(\d+)\)\.restore", end.message)
    if back:
        others.bring_back(scene.place, int(back[1]))
    try:
        hidden = others.STRANGERS - others.strangers(scene.rows(scene.place.open_unharmed()))
    except Exception as error:
        fight.unreadable += 1
        fight.blame(f"the new dataset is unreadable: {error}")
    else:
        fight.lost += hidden
        if hidden:
            fight.blame(f"{hidden} rows of the new dataset are hidden")
    if scene.healthy():  # its own epochs are nowhere
        fight.healthy += 1
        fight.blame("the recovery check says healthy")
    scene.renew()


def restore(fight: Fight) -> None:
    """Bring an older version back; the next driver must say so, and so must a busy one."""
    (_restore_under if fight.plan.busy else _restore_after)(fight)


def _restore_after(fight: Fight) -> None:
    scene, plan = fight.scene, fight.plan
    life = scene.driver(point=plan.point, occurrence=plan.occurrence)
    fight.end(life, Manner.KILLED, Manner.FINISHED)
    restored = others.restore(scene.place, plan.after)
    if restored is None:
        fight.missed += 1
        return
    undone, there = _epochs(fight, restored)
    if plan.cleaned is Cleaned.OURS:
        with suppress(LanceStreamError):  # a refusal is right, too
            clean_up(scene.place.open(), ALONE, scene.place.options)
    if plan.cleaned is Cleaned.ALL:
        others.clean_everything(scene.place)
    _get_over(fight, restored, undone, there)


def _restore_under(fight: Fight) -> None:
    scene, plan, since = fight.scene, fight.plan, fight.scene.committed
    life = scene.driver(FOREVER, fresh=FRESH_SECONDS)
    if not fight.progressed(life, plan.after + 1, since):
        fight.end(life)
        return
    restored = others.restore(scene.place, plan.after)
    if restored is None:
        fight.missed += 1
        life.kill(plan.whom)
        fight.end(life, Manner.KILLED)
        return
    _must_end(fight, life, "an older version was restored under it")
    _get_over(fight, restored, *_epochs(fight, restored))


def _must_end(fight: Fight, life: Life, what: str) -> End:
    """Wait for the end of a driver that must notice, busy as it is."""
    if fight.kept_busy(life, SOON_SECONDS):
        return fight.end(life, Manner.FENCED, Manner.REFUSED, Manner.GAVE_UP)
    fight.blame(f"a driver went on for {SOON_SECONDS:g} s although {what}")
    life.kill(Whom.ALL)
    return fight.end(life, Manner.KILLED)


def _epochs(fight: Fight, restored: Restored) -> tuple[set[int], set[int]]:
    """Return the epochs that a restore took from the dataset, and those that are there."""
    stamps = others.stamps(fight.scene.place)
    there = {e for v, e in stamps.items() if not restored.target < v < restored.made}
    return set(stamps.values()) - there, there


def _get_over(fight: Fight, restored: Restored, undone: set[int], there: set[int]) -> None:
    """Let a driver refuse, take one of the two ways out, and let another one read the rest."""
    scene, plan = fight.scene, fight.plan
    # An epoch that Spark has not logged is written again, and nothing of it is lost.
    gone = {epoch for epoch in undone if epoch <= scene.committed}
    # Where everything old is gone, the epoch in flight may be in doubt as well, and a driver cannot
    # see that a restore took no epoch away.
    gap = {"HistoryGapError", "DatasetRestoredError"} if plan.cleaned is Cleaned.ALL else set()
    landed = scene.planned in there
    if gone:
        fight.check(scene.judge())
        end = fight.refusal("DatasetRestoredError", *gap)
        if end is None:
            return
        went_on = any(version > restored.made for version in others.stamps(scene.place))
        newer = restored.newest in others.versions(scene.place)
        if plan.accepted or went_on or not newer:
            fight.answer(end, landed=landed, gone=gone)
        else:
            others.bring_back(scene.place, restored.newest)
    while (end := fight.end(scene.driver(), Manner.FINISHED, errors=gap)).error in gap:
        fight.answer(end, landed=landed)
        gap = gap - {end.error}  # each is asked once


def replace_offsets(fight: Fight) -> None:
    """Replace Spark's plan for the newest epoch; the next driver must name the epoch."""
    scene, plan = fight.scene, fight.plan
    life = scene.driver(point=plan.point, occurrence=plan.occurrence)
    fight.end(life, Manner.KILLED, Manner.FINISHED)
    epoch = scene.planned
    if scene.judge().epoch != epoch:
        fight.missed += 1
        return
    scene.source.add(max(0, 1 - scene.unread))
    put_back = others.replace_offsets(scene, epoch)
    fight.check(scene.judge())
    if fight.refusal("CheckpointMismatchError", naming=f"epoch {epoch}"):
        put_back()
        fight.end(scene.driver(), Manner.FINISHED)
