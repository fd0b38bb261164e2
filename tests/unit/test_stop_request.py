"""Who is asked to stop, and who obeys."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_lance.exceptions import FencedError
from airflow_provider_lance.protocol.codec import decode_query, encode_stop, key
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.model import StopNote
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import QUERY, QUICK, SparkLike, twin_world


class World:
    """One query in one dataset, and launches of it."""

    def __init__(self) -> None:
        self.dataset = InMemoryDataset()
        self.log: dict[str, int] = {}

    def launch(self, launch_id: str = "", **more: object) -> SparkLike:
        run_id = f"run-of-{launch_id or 'nobody'}"
        return SparkLike(
            twin_world(self.dataset),
            self.log,
            run_id=run_id,
            launch_id=launch_id,
            **more,  # type: ignore[arg-type]
        )

    def active(self, launch_id: str) -> SparkLike:
        driver = self.launch(launch_id)
        driver.step()
        return driver

    def released(self, launch_id: str = "earlier") -> None:
        assert self.active(launch_id).committer.release()

    def ask(self, launch_id: str = "", by: str = "on-call") -> int | None:
        return request_stop(self.dataset.open(), QUERY, QUICK, by=by, launch_id=launch_id)

    @property
    def note(self) -> StopNote | None:
        return decode_query(self.dataset.open().config, QUERY, self.dataset.version).stop_note

    def set_by_hand(self, word: str, text: str) -> None:
        self.dataset.open().commit(Configure({key(word, QUERY): text}))


@pytest.fixture
def world() -> World:
    return World()


def obeys(driver: SparkLike) -> bool:
    return driver.committer.stop_requested(poll=True) is not None


def test_a_request_is_one_commit_and_says_who_asked(world: World) -> None:
    driver = world.active("mine")
    before = world.dataset.version
    assert world.ask("mine") == 1
    assert world.dataset.version == before + 1
    note = driver.committer.stop_requested(poll=True)
    assert note == world.note
    assert note is not None
    assert (note.token, note.launch_id, note.by) == (1, "mine", "on-call")
    assert note.time.endswith("+00:00")


def test_the_same_request_is_not_written_twice(world: World) -> None:
    world.active("mine")
    for launch_id in ("mine", "mine", ""):
        assert world.ask(launch_id) == 1
    assert world.dataset.version == 4, "made, claimed, written, asked"


def test_a_launch_that_does_not_hold_the_query_is_asked_under_its_next_token(
    world: World,
) -> None:
    """The owner's driver may be dead, and the one that is named wait for its first rows."""
    dead, mine, other = world.active("dead"), world.launch("mine"), world.launch("other")
    assert world.ask("mine") == 2
    assert world.note
    assert (world.note.token, world.note.launch_id) == (2, "mine")
    assert [obeys(driver) for driver in (dead, mine, other)] == [False, True, False]
    mine.step()
    assert mine.committer.stop_requested(), "its claim does not make it forget"
    assert mine.committer.release()
    assert world.note is None


def test_a_launch_is_asked_before_the_query_has_an_owner(world: World) -> None:
    mine, other = world.launch("mine"), world.launch("other")
    assert world.ask("mine") == 1
    assert obeys(mine)
    assert not obeys(other)
    assert obeys(world.launch("mine")), "also if it looks for the first time after that"
    mine.step()
    assert mine.committer.stop_requested()


def test_stop_request_writes_nothing_without_an_owner_and_a_launch(world: World) -> None:
    before = world.dataset.version
    assert world.ask() is None
    assert world.dataset.version == before


def test_a_launch_that_has_released_is_not_asked(world: World) -> None:
    world.released("mine")
    before = world.dataset.version
    assert world.ask("mine") is None
    assert world.dataset.version == before


def test_asking_before_the_claim_is_one_commit_however_often(world: World) -> None:
    world.active("dead")
    before = world.dataset.version
    assert [world.ask("mine") for _ in range(3)] == [2, 2, 2]
    assert world.dataset.version == before + 1


def test_claim_of_another_launch_removes_the_stop_request(world: World) -> None:
    world.active("dead")
    world.ask("mine")
    other = world.active("other")
    assert world.note is None
    assert not obeys(other)


def test_a_driver_without_a_launch_is_asked_by_its_token_only(world: World) -> None:
    driver = world.active("")
    world.ask("mine")
    assert not obeys(driver)
    assert world.ask() == 1
    assert obeys(driver)


def test_after_a_release_only_the_launch_that_was_named_obeys(world: World) -> None:
    world.released()
    mine, other = world.launch("mine"), world.launch("other")
    assert world.ask("mine") == 2
    assert obeys(mine)
    assert not obeys(other)
    other.step()
    assert not obeys(other), "not even with the token that was asked for"


def test_a_launch_obeys_what_named_it_before_it_started(world: World) -> None:
    world.released()
    world.ask("mine")
    assert obeys(world.launch("mine"))


def test_stop_request_without_a_launch_is_not_obeyed_by_a_later_launch(world: World) -> None:
    world.released()
    world.ask()
    later = world.launch("later")
    assert not obeys(later)
    later.step()
    assert not obeys(later), "its claim got the very token that was asked for"
    assert world.ask() == 2
    assert obeys(later)


@pytest.mark.parametrize("released", [True, False])
def test_a_request_since_the_launch_is_obeyed_however_slowly_the_driver_starts(
    world: World, released: bool
) -> None:
    """Spark may take many seconds between the launch and the first look at the dataset."""
    earlier = world.active("earlier")
    if released:
        assert earlier.committer.release()
    before, after = (datetime.now(UTC) + timedelta(seconds=each) for each in (-5, 5))
    world.ask()
    slow, later = world.launch("slow", launched_at=before), world.launch("x", launched_at=after)
    assert (obeys(slow), obeys(later)) == (True, False)
    slow.step()
    assert slow.committer.stop_requested(), "its claim takes the request along"
    owner = slow.committer.owner
    assert world.note
    assert owner
    assert (world.note.by, world.note.token) == ("on-call", owner.token)
    assert slow.committer.release()
    assert world.note is None


def test_second_stop_request_after_a_release_reaches_the_launch_that_came_meanwhile(
    world: World,
) -> None:
    world.released()
    world.ask()
    waiting = world.launch("waiting")
    world.ask(by="on-call, again")
    assert obeys(waiting)


def test_a_request_that_came_while_it_waited_outlives_the_claim(world: World) -> None:
    world.released()
    waiting = world.launch("waiting")
    world.ask()
    waiting.step()
    assert waiting.committer.stop_requested()


def test_the_newest_request_stands(world: World) -> None:
    world.released()
    one, two = world.launch("one"), world.launch("two")
    world.ask("one")
    world.ask("two")
    assert not obeys(one)
    assert obeys(two)
    world.ask()
    assert obeys(one)
    assert obeys(two)


def test_an_owner_that_was_not_meant_can_still_be_asked(world: World) -> None:
    world.active("mine")
    world.dataset.open().commit(Configure(encode_stop(QUERY, StopNote(1, "other"))))
    assert world.ask() == 1
    assert world.note is not None
    assert world.note.launch_id == ""


@pytest.mark.parametrize(
    "note",
    [
        None,
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({"token": 7, "launchId": "other"}),
        json.dumps({"token": "1", "launchId": "other"}),
        json.dumps({"token": 1, "launchId": None, "by": None}),
    ],
)
def test_a_stop_written_by_hand_is_obeyed_whatever_its_note(world: World, note: str | None) -> None:
    driver = world.active("mine")
    world.set_by_hand("stop", "1")
    if note is not None:
        world.set_by_hand("stopNote", note)
    assert driver.committer.stop_requested(poll=True) == StopNote(1)
    assert world.ask("mine") == 1, "it stands already"
    assert driver.committer.release()
    assert not [name for name in world.dataset.open().config if ".stop" in name]


# ----------------------------------------------------------------------------- a newer owner


def test_polling_shows_a_newer_owner_and_the_own_handle_does_not(world: World) -> None:
    stale = world.active("stale")
    world.active("newer")
    assert stale.committer.stop_requested() is None
    with pytest.raises(FencedError, match=r"token 2 \(active\) of run run-of-newer.*had token 1"):
        stale.committer.stop_requested(poll=True)
    assert not stale.committer.release()


def test_newer_owner_fences_the_stale_driver_even_when_it_has_released(world: World) -> None:
    stale = world.active("stale")
    world.released("newer")
    with pytest.raises(FencedError, match="released"):
        stale.committer.stop_requested(poll=True)


def test_being_fenced_comes_before_being_stopped(world: World) -> None:
    stale = world.active("stale")
    world.ask("stale")
    world.active("newer")
    with pytest.raises(FencedError):
        stale.committer.stop_requested(poll=True)


def test_a_driver_that_waits_is_fenced_by_a_claim_after_its_start_only(world: World) -> None:
    first = world.active("first")
    waiting = world.launch("waiting")
    first.step()
    assert not obeys(waiting), "the owner that it found may be dead"
    world.active("newer")
    with pytest.raises(FencedError, match="token 2 .* run-of-newer "):
        waiting.committer.stop_requested(poll=True)


def test_poll_during_its_own_claim_does_not_fence_the_driver(world: World) -> None:
    polled: list[object] = []

    def poll(step: object) -> None:
        polled.append(driver.committer.stop_requested(poll=True))

    world.released()
    driver = world.launch("mine", on_step=poll)
    driver.step()
    assert len(polled) > 5
    assert not any(polled)


def test_a_new_generation_waits_beside_the_old_one(world: World) -> None:
    old = world.active("old")
    policy = CommitPolicy(new_generation=True, backoff=QUICK)
    new = SparkLike(twin_world(world.dataset), {}, checkpoint_id="another", policy=policy)
    world.active("old-again")
    assert not obeys(new), "the claim was on a checkpoint that is not its own"
    new.step()
    with pytest.raises(FencedError):
        old.committer.stop_requested(poll=True)
