"""One round: a driver, what is done to it and beside it, and which ends are right."""

from __future__ import annotations

import time

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.stop_requests import request_stop
from tests.chaos import rims
from tests.chaos.fight import Fight
from tests.chaos.life import Life, Manner
from tests.chaos.plan import Attack
from tests.chaos.rival import take_over
from tests.chaos.scene import FOREVER, NOW, QUERY
from tests.chaos.upkeep import destroy_evidence

SPARK_MEETS = "CONCURRENT_STREAM_LOG_UPDATE"
"""What Spark says to the later one of two drivers that meet at its log."""


def fight(fight: Fight) -> None:
    """Run a round's drivers to their ends."""
    {
        Attack.KILL_AT: _kill_at,
        Attack.KILL_ANY: _kill_any,
        Attack.PAUSE: _pause,
        Attack.STEAL: _steal,
        Attack.GAP: _gap,
        Attack.STOP: _stop,
        Attack.DRAIN: _drain,
        Attack.HOLD: rims.hold,
        Attack.RESTORE: rims.restore,
        Attack.RECREATE: rims.recreate,
        Attack.CLEAN: rims.clean,
        Attack.REPLACE: rims.replace_offsets,
    }[fight.plan.attack](fight)


def _kill_at(fight: Fight) -> None:
    plan = fight.plan
    life = fight.scene.driver(point=plan.point, occurrence=plan.occurrence, whom=plan.whom)
    end = fight.end(life, Manner.KILLED, Manner.FINISHED)
    fight.missed += end.manner is not Manner.KILLED


def _kill_any(fight: Fight) -> None:
    plan, since = fight.plan, fight.scene.committed
    life = fight.scene.driver(FOREVER)
    if fight.begun(life):
        fight.progressed(life, plan.after, since)
        time.sleep(plan.delay if plan.after else 3 * plan.delay)
        life.kill(plan.whom)
    end = fight.end(life, Manner.KILLED)
    fight.missed += end.manner is not Manner.KILLED


def _pause(fight: Fight) -> None:
    scene, plan = fight.scene, fight.plan
    life = scene.driver(point=plan.point, occurrence=plan.occurrence, pause=True)
    committed = False
    if fight.until(life, lambda: life.stopped):
        with scene.place.unharmed():
            committed = take_over(scene)
        life.go_on()
    else:
        fight.missed += 1
    # Who stood before its commit, and meets somebody who has committed that epoch, must be told.
    must_be_fenced = committed and plan.point == Failpoint.COMMIT_CHECKED
    fight.end(life, Manner.FENCED, *([] if must_be_fenced else [Manner.FINISHED]))


def _steal(fight: Fight) -> None:
    scene, since = fight.scene, fight.scene.committed
    old = scene.driver(FOREVER)
    if not fight.progressed(old, 1, since):
        fight.end(old)
        return
    new = scene.driver(NOW, point=fight.plan.rival)
    fed = time.monotonic()
    while not new.over and not new.too_long:
        if time.monotonic() - fed > 0.5 and scene.unread < 6:
            scene.source.add()  # the older one stays busy
            fed = time.monotonic()
        time.sleep(0.02)
    end = fight.end(new, Manner.FINISHED, Manner.KILLED)
    if end.manner is Manner.GAVE_UP and not old.over:
        old.kill(fight.plan.whom)
    _meet(fight, old)


def _meet(fight: Fight, old: Life) -> None:
    """Wait for the end of a driver that has lost its query."""
    end = old.end()
    spark = end.manner is Manner.UNNAMED and SPARK_MEETS in end.message
    fight.ends.append(end)
    fight.kills += end.manner is Manner.KILLED
    right = {Manner.FENCED, Manner.KILLED} | ({Manner.GAVE_UP} if fight.plan.faults else set())
    if not spark and end.manner not in right:
        fight.blame(f"the older of two drivers {end.manner}: {end.error} {end.message}")


def _gap(fight: Fight) -> None:
    scene, plan = fight.scene, fight.plan
    life = scene.driver(point=plan.point, occurrence=plan.occurrence, whom=plan.whom)
    end = fight.end(life, Manner.KILLED)
    if end.manner is not Manner.KILLED:
        return
    destroy_evidence(scene.place)
    refused = fight.end(scene.driver(), Manner.REFUSED)
    if refused.error != "HistoryGapError":
        fight.blame(f"evidence was destroyed, and the driver said {refused.error or 'nothing'}")
        return
    fight.answer(refused, landed=scene.judge().epoch == scene.planned)


def _stop(fight: Fight) -> None:
    since = fight.scene.committed
    life = fight.scene.driver(FOREVER)
    if fight.progressed(life, fight.plan.after, since):
        request_stop(fight.scene.place.open(), QUERY, by="the laboratory")
    fight.end(life, Manner.FINISHED)


def _drain(fight: Fight) -> None:
    fight.end(fight.scene.driver(), Manner.FINISHED)
