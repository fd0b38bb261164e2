"""Plans of the laboratory: the same seed gives the same, and nothing is left out."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.draw import KINDS, station, stations
from tests.chaos.faults import Faults, Strike
from tests.chaos.plan import (
    POINTS,
    RIMS,
    ROUNDS,
    Attack,
    Between,
    Cleaned,
    Control,
    Meanwhile,
    SparkPoint,
    Store,
    Whom,
)
from tests.chaos.store import FaultPlan
from tests.support.proxy import Fault, Kind, Request

SEED = "1"


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert stations(SEED, 60) == stations(SEED, 60)
    assert stations(SEED, 60) != stations("2", 60)


def test_a_round_is_the_same_however_many_there_are() -> None:
    whole = {round_.number: round_ for plan in stations(SEED, 300) for round_ in plan.rounds}
    assert sorted(whole) == list(range(300))
    few = [round_ for plan in stations(SEED, 5, least=2) for round_ in plan.rounds]
    assert [round_.number for round_ in few] == [0, 1, 2, 12, 13]
    assert all(whole[round_.number] == round_ for round_ in few)


def test_three_hundred_rounds_plan_enough_of_everything() -> None:
    plans = stations(SEED, 300)
    rounds = [round_ for plan in plans for round_ in plan.rounds]
    attacks = Counter(round_.attack for round_ in rounds)
    assert attacks[Attack.KILL_AT] + attacks[Attack.KILL_ANY] + attacks[Attack.GAP] >= 175
    assert set(attacks) == set(Attack)
    assert all(attacks[attack] >= 10 for attack in RIMS)
    assert {round_.meanwhile for round_ in rounds} == set(Meanwhile)
    assert {round_.cleaned for round_ in rounds} == set(Cleaned)
    restores = [round_ for round_ in rounds if round_.attack is Attack.RESTORE]
    assert {(round_.busy, round_.accepted) for round_ in restores} == {
        (busy, accepted) for busy in (False, True) for accepted in (False, True)
    }
    assert {round_.between for round_ in rounds} == set(Between)
    assert {round_.whom for round_ in rounds} == set(Whom)
    strikes = [each for round_ in rounds if round_.faults for each in round_.faults.strikes]
    assert len(strikes) >= 200
    assert {strike.fault for strike in strikes} == set(Fault)


def test_every_rim_is_met_on_every_kind_of_stream() -> None:
    plans = [station(SEED, number) for number in range(30)]
    met = {(plan.mode, plan.store, r.attack) for plan in plans for r in plan.rounds}
    assert met >= {(*kind, attack) for kind in KINDS for attack in RIMS}


def test_one_attack_can_be_asked_for_in_all_rounds() -> None:
    plans = stations(SEED, 14, attack=Attack.HOLD)
    assert {round_.attack for plan in plans for round_ in plan.rounds} == {Attack.HOLD}
    assert plans[1].rounds[0] == station(SEED, 1, attack=Attack.HOLD).rounds[0]


@pytest.mark.parametrize("first", range(6))
def test_three_stations_in_a_row_die_at_every_point(first: int) -> None:
    rounds = [r for number in range(first, first + 3) for r in station(SEED, number).rounds]
    died = {round_.point for round_ in rounds if round_.attack is Attack.KILL_AT}
    assert died == set(POINTS)


def test_six_stations_in_a_row_have_every_mode_on_every_store() -> None:
    plans = [station(SEED, number) for number in range(6)]
    assert {(plan.mode, plan.store) for plan in plans} == set(KINDS)
    assert all(len(plan.rounds) == ROUNDS for plan in plans)


def test_only_a_store_that_can_fail_fails_and_never_where_evidence_is_destroyed() -> None:
    for plan in stations(SEED, 300):
        for round_ in plan.rounds:
            may_fail = plan.store is Store.S3 and round_.attack not in (Attack.GAP, *RIMS)
            assert (round_.faults is not None) == may_fail


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_control_meets_what_it_lacks_at_once(seed: str) -> None:
    first = station(seed, 0, Control.BARRIER).rounds[0]
    assert (first.attack, first.point) == (Attack.PAUSE, "commit.checked")
    assert not first.maintained
    held = station(seed, 0, Control.CHAIN).rounds[0]
    assert (held.attack, held.point) == (Attack.HOLD, "commit.checked")
    assert held.meanwhile is Meanwhile.OTHERS
    for round_ in station(seed, 0, Control.LOOKBACK).rounds:
        assert (round_.point, round_.between) == (SparkPoint.SUNK, Between.COMMITS)


def test_a_strike_meets_the_nth_request_of_its_kind_and_no_other() -> None:
    faults = Faults("x", 0.0, (Strike(Kind.PUT_MANIFEST, 2, Fault.RESET_AFTER),), 0.05)
    plan = FaultPlan(faults)
    kinds = [Kind.PUT_MANIFEST, Kind.LIST, Kind.PUT_MANIFEST, Kind.PUT_MANIFEST, Kind.LIST]
    met = [plan(Request("PUT", "/", kind)) for kind in kinds]
    assert met == [None, None, Fault.RESET_AFTER, None, None]


def test_a_share_of_all_requests_fails_and_the_same_ones_again() -> None:
    faults = Faults("x", 0.2, (), 0.05)

    def drawn() -> list[Fault | None]:
        plan = FaultPlan(faults)
        return [plan(Request("GET", "/", Kind.LIST)) for _ in range(500)]

    assert drawn() == drawn()
    assert 60 < sum(fault is not None for fault in drawn()) < 140
