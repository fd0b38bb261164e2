"""A driver looks after its own table: whose turn it is, what it removes, what it keeps."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.changes import collect_changes
from airflow_provider_lance.exceptions import ProtocolVersionError, StorageUnavailableError
from airflow_provider_lance.maintenance import upkeep
from airflow_provider_lance.maintenance.upkeep import Standing, begin_turn, remove_old_versions
from airflow_provider_lance.protocol.consumers import Consumer, leave_position
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.protocol.upkeep import LAST_TURN, Turn, read_policy, read_turn
from airflow_provider_lance.spark import autocompact
from airflow_provider_lance.spark.autocompact import AutoCompaction, Table, left_alone
from airflow_provider_lance.supervision.heartbeat import Heartbeat, Upkeep
from tests.support.drivers import QUERY, SparkLike, World, epoch_rows, lance_world
from tests.support.maintenance import age, ids, make, numbers, run, stream
from tests.unit.test_autocompact import expect_rows, fragments, of_rows, rewrites, settle, step

HOUR, DAY = 3600, 24 * 3600


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def world(uri: str) -> World:
    return lance_world(uri)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns due after fewer epochs, and let a driver keep fewer versions."""
    monkeypatch.setattr(upkeep, "_FRAGMENTS", 4)
    monkeypatch.setattr(upkeep, "_VERSIONS", 8)
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)


def drive(driver: SparkLike, keeper: AutoCompaction, epochs: int, uri: str = "") -> None:
    """Run epochs, each with its turn; with a URI, all versions are an hour old before each."""
    for _ in range(epochs):
        if uri:
            age(uri, HOUR + 60)
        step(driver, keeper)
        settle(keeper)


# --------------------------------------------------------------------------------- when it is due


def test_by_default_a_table_gets_a_turn_every_fifty_fragments(uri: str, world: World) -> None:
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    drive(driver, keeper, 49)
    assert (fragments(uri), rewrites(uri)) == (49, 0)
    drive(driver, keeper, 1)
    assert (fragments(uri), rewrites(uri)) == (1, 1)
    drive(driver, keeper, 60)
    assert rewrites(uri) == 2
    assert fragments(uri) < 60
    assert keeper.done.fragments_removed > 99
    assert keeper.done.compacted_at
    assert not keeper.done.why
    expect_rows(world, 110)


@pytest.mark.usefixtures("small")
def test_short_runs_share_one_count(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_VERSIONS", 1000)
    log: dict[str, int] = {}
    seen = []
    for _ in range(6):
        driver, keeper = SparkLike(world, log), AutoCompaction(None, QUERY)
        drive(driver, keeper, 2)
        assert driver.committer.release()
        seen.append(rewrites(uri))
    assert seen[0] == 0
    assert seen[-1] in (2, 3)
    expect_rows(world, 12)


@pytest.mark.usefixtures("small")
def test_what_others_add_counts_and_what_others_compact_does_not(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_VERSIONS", 1000)
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    for _ in range(4):
        drive(driver, keeper, 2)
        lance.dataset(uri).optimize.compact_files()
    assert not keeper.done.compacted_at, "somebody else's maintenance leaves it nothing to do"
    others = lance.dataset(uri).to_table()
    for _ in range(3):
        lance.write_dataset(others, uri, mode="append")
    drive(driver, keeper, 1)
    assert keeper.done.compacted_at


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_other_modes_lose_old_versions_too(uri: str, world: World, mode: OutputMode) -> None:
    driver, keeper = SparkLike(world, {}, mode=mode), AutoCompaction(None, QUERY)
    drive(driver, keeper, 40, uri)
    assert keeper.done.versions_removed > 10
    assert len(numbers(uri)) < 25
    assert not keeper.done.why
    found = Counter(row["id"] for row in world.rows())
    done = range(39, 40) if mode is OutputMode.COMPLETE else range(40)
    assert found == Counter(row["id"] for n in done for row in epoch_rows(n))


def test_zero_turns_all_of_it_off(uri: str, world: World, small: None) -> None:
    driver, keeper = SparkLike(world, {}), AutoCompaction(0, QUERY)
    drive(driver, keeper, 30, uri)
    assert fragments(uri) == 30
    assert len(numbers(uri)) > 30
    assert LAST_TURN not in open_dataset(uri).config


# ----------------------------------------------------------------------------------- what it keeps


def old(folder: Path, *, versions: int = 20, seconds: float = 2 * HOUR) -> str:
    """Make a dataset with a stream, of which all versions have one age."""
    uri = make(folder, 1)
    driver = stream(uri)
    for _ in range(versions):
        driver.step()
    age(uri, seconds)
    return uri


def removed(uri: str, keep: int | None = None) -> int:
    return remove_old_versions(open_dataset(uri), keep).versions


def test_many_versions_go_when_they_are_an_hour_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = old(tmp_path, seconds=HOUR - 120)
    assert removed(uri) == 0
    age(uri, HOUR + 60)
    assert removed(uri) == 0, "they are few"
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)
    age(uri, HOUR - 120)
    assert removed(uri) == 0, "they are young"
    age(uri, HOUR + 60)
    assert removed(uri) > 5
    assert 10 <= len(numbers(uri)) <= 12


def test_few_versions_go_when_they_are_a_week_old(tmp_path: Path) -> None:
    uri = old(tmp_path, seconds=7 * DAY - 120)
    assert removed(uri) == 0
    age(uri, 7 * DAY + 60)
    assert removed(uri) > 15


def test_what_the_user_says_counts_in_place_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)
    uri = old(tmp_path, seconds=2 * DAY)
    assert removed(uri, 3 * DAY) == 0
    assert removed(uri, DAY) > 15


def test_what_a_scheduled_cleanup_keeps_is_kept_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)
    uri = old(tmp_path, seconds=2 * DAY)
    run(uri, steps=["cleanup"], olderThan=3 * DAY)
    policy = read_policy(open_dataset(uri).config)
    assert policy is not None
    assert policy.older_than == 3 * DAY
    before = numbers(uri)
    run(uri, steps=["cleanup"], olderThan=3 * DAY)
    assert numbers(uri) == before, "it is not written again at each run"
    age(uri, 2 * DAY)
    assert removed(uri) == 0
    age(uri, 4 * DAY)
    assert removed(uri) > 5
    assert len(numbers(uri)) >= 10


def test_a_cleanup_that_nobody_repeats_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)
    monkeypatch.setattr(upkeep, "_POLICY_COUNTS", timedelta(0))
    uri = old(tmp_path)
    run(uri, steps=["cleanup"], olderThan=3 * DAY)
    age(uri, 2 * HOUR)
    assert removed(uri) > 5


def test_a_shorter_cleanup_by_hand_does_not_shorten_what_a_driver_keeps(tmp_path: Path) -> None:
    uri = old(tmp_path, seconds=60)
    run(uri, steps=["cleanup"], olderThan=1200)
    age(uri, 2 * HOUR)
    assert removed(uri) == 0


def test_tags_and_consumers_keep_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 10)
    uri = old(tmp_path, versions=30)
    lance.dataset(uri).tags.create("training", 3)
    position = SourceOffset(8, 0)
    leave_position(open_dataset(uri), Consumer("hourly", position, datetime.now(UTC)))
    age(uri, 2 * HOUR)
    removed(uri)
    left = numbers(uri)
    assert 3 in left
    assert set(range(position.oldest_needed, 20)) <= set(left)
    assert 2 not in left


def test_a_driver_does_not_read_a_history_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = old(tmp_path, seconds=8 * DAY)
    monkeypatch.setattr(upkeep, "_MANIFEST_BYTES", 1000)
    cleaned = remove_old_versions(open_dataset(uri), None)
    assert cleaned.versions == 0
    assert "lance-stream cleanup" in cleaned.warnings[0]


# -------------------------------------------------------------------------------- whose turn it is


def test_of_two_queries_only_one_takes_the_turn(uri: str, world: World) -> None:
    for name in ("a", "b"):
        stream(uri, query_id=name).step()
    port = open_dataset(uri)
    assert begin_turn(port, "a")
    assert begin_turn(port, "b") is None, "both saw the same version"
    assert begin_turn(port.latest(), "b") is None, "the other has just begun"
    assert begin_turn(port.latest(), "a")
    turn = read_turn(port.latest().config)
    assert turn is not None
    assert turn.query_id == "a"


def test_a_turn_that_was_left_is_taken_by_another(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream(uri, query_id="a").step()
    assert begin_turn(open_dataset(uri), "a")
    monkeypatch.setattr(upkeep, "_TAKEN", timedelta(0))
    assert begin_turn(open_dataset(uri), "b")


@pytest.mark.usefixtures("small")
def test_two_drivers_of_two_queries_share_the_work(uri: str, world: World) -> None:
    drivers = [SparkLike(world, {}, query_id=name) for name in ("a", "b")]
    keepers = [AutoCompaction(None, name) for name in ("a", "b")]
    for n in range(20):
        for place, (driver, keeper) in enumerate(zip(drivers, keepers, strict=True)):
            rows = [{"id": 2 * n + place, "epoch": n}]
            driver.step(rows)
            committer: Any = driver.committer
            keeper.epoch_done(n, committer.port, committer.owner)
        for keeper in keepers:
            settle(keeper)
    assert ids(uri) == Counter(range(40))
    assert fragments(uri) < 16
    assert [keeper.done.why for keeper in keepers] == ["", ""]


@pytest.mark.parametrize("text", ["{", '{"protocol":1}', '{"protocol":99}', "[]"])
def test_a_record_that_cannot_be_read_is_told_and_the_stream_continues(
    uri: str, world: World, small: None, text: str
) -> None:
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    drive(driver, keeper, 1)
    open_dataset(uri).commit(Configure({LAST_TURN: text}))
    with pytest.raises(ProtocolVersionError, match=r"upkeep\.turn"):
        read_turn(open_dataset(uri).config)
    drive(driver, keeper, 8)
    assert "upkeep.turn" in keeper.done.why
    assert fragments(uri) == 9
    open_dataset(uri).commit(Configure({LAST_TURN: None}))
    drive(driver, keeper, 8)
    assert fragments(uri) < 9


def test_a_turn_reads_what_it_wrote() -> None:
    now = datetime.now(UTC)
    turn = Turn("orders", now, 12, 3, 4, now - timedelta(hours=1), 7)
    config = {name: text for name, text in turn.updates().items() if text}
    assert read_turn(config) == turn
    assert Standing.recorded.__doc__


# ------------------------------------------------------------------------------------ how it ends


class Killed(BaseException):
    """What a kill looks like to a thread."""


STEPS = ("turn.begun", "turn.compacted", "turn.cleaned")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_a_driver_that_ends_at_a_step_of_its_turn_loses_nothing(
    uri: str, world: World, point: str, mode: OutputMode
) -> None:
    log: dict[str, int] = {}
    died = 0

    def die(step: str) -> None:
        nonlocal died
        if step == point:
            died += 1
            raise Killed(step)

    for run_id in range(5):
        driver = SparkLike(world, log, run_id=str(run_id), mode=mode)
        keeper = AutoCompaction(None, QUERY, on_step=die if run_id % 2 == 0 else lambda step: None)
        drive(driver, keeper, 13, uri)
    assert died
    assert keeper is not None
    found = Counter(row["id"] for row in world.rows())
    assert found == Counter(row["id"] for n in range(65) for row in epoch_rows(n))
    assert fragments(uri) < 40


@pytest.mark.usefixtures("small")
def test_an_epoch_that_was_paused_while_its_versions_were_removed_lands_once(
    uri: str, world: World
) -> None:
    """The old driver hangs with its handle, its successor's turns remove all that it has seen."""
    log: dict[str, int] = {}
    stale = SparkLike(world, log, run_id="stale")
    stale.step()
    newer, keeper = SparkLike(world, log, run_id="newer"), AutoCompaction(None, QUERY)
    drive(newer, keeper, 30, uri)
    committer: Any = stale.committer
    assert committer.port.version < min(numbers(uri))
    stale.next = 31
    with pytest.raises(Exception, match=r"token|claimed|epoch"):
        stale.step()
    drive(newer, keeper, 2)
    found = Counter(row["id"] for row in world.rows())
    assert found == Counter(row["id"] for n in range(33) for row in epoch_rows(n))


@pytest.mark.usefixtures("small")
def test_the_evidence_of_another_query_stays(uri: str, world: World) -> None:
    """One that was killed before its fold must find its epochs, however many versions go."""
    dead_log: dict[str, int] = {}
    dead = SparkLike(world, dead_log, query_id="dead")
    for n in range(3):
        dead.step([{"id": -1 - n, "epoch": n}])
    dead_log["committed"] = 1  # killed between its commit and Spark's
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    drive(driver, keeper, 40, uri)
    assert keeper.done.versions_removed > 10
    again = SparkLike(world, dead_log, query_id="dead", run_id="again")
    assert again.next == 2
    again.step([{"id": -3, "epoch": 2}])
    assert Counter(i for i in ids(uri).elements() if i < 0) == Counter([-1, -2, -3])


@pytest.mark.usefixtures("small")
def test_a_store_that_fails_costs_a_turn_and_not_the_stream(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise StorageUnavailableError("the store is away")

    monkeypatch.setattr(autocompact, "remove_old_versions", fail)
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    drive(driver, keeper, 20, uri)
    assert keeper.done.why == "the store is away"
    assert keeper.done.why_at
    expect_rows(world, 20)


# ---------------------------------------------------------------------------------- what is shown


def test_a_heartbeat_carries_what_was_done() -> None:
    done = Upkeep().compacted(52, 1).cleaned(400, 2_000_000)
    beat = Heartbeat.parse({"sink": {"upkeep": done.to_json()}})
    assert beat.upkeep == done
    for wrong in (None, [], {"versionsRemoved": "many"}):
        assert Heartbeat.parse({"sink": {"upkeep": wrong}}).upkeep == Upkeep()
    now = datetime.now(UTC) + timedelta(minutes=5)
    said = formatting.upkeep(done, now)
    assert "52 fragments compacted into 1" in said
    assert "400 old versions removed (2.0 MB)" in said
    assert "not done" not in said
    assert "the store is away" in formatting.upkeep(
        Upkeep(why="the store is away", why_at=now.isoformat()), now
    )
    assert formatting.upkeep(Upkeep(), now) == ""


@pytest.mark.usefixtures("small")
def test_changes_name_the_query_whose_driver_looked_after_the_dataset(
    uri: str, world: World
) -> None:
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    drive(driver, keeper, 20, uri)
    found = [str(each) for each in collect_changes(open_dataset(uri), "another")]
    assert f"the driver of query {QUERY} looked after the dataset" in found[-1] + found[1]
    assert any("old versions so far" in each for each in found)
    assert any("compacted" in each for each in found)


# ------------------------------------------------------------------------------------ side tables


@pytest.mark.usefixtures("small")
def test_side_tables_get_turns_of_their_own(tmp_path: Path, uri: str, world: World) -> None:
    driver, keeper = SparkLike(world, {}), AutoCompaction(None, QUERY)
    place = str(tmp_path / "side.lance")
    side = SparkLike(lance_world(place), {})
    for n in range(9):
        driver.step()
        side.step()
        mine, beside = (each.committer for each in (driver, side))
        ports: Any = (mine.port, beside.port)
        keeper.epoch_done(n, ports[0], mine.owner, [Table(ports[1], beside.owner, "route:eu")])
        settle(keeper)
    assert fragments(place) < 5
    assert fragments(uri) < 5
    expect_rows(lance_world(place), 9)


# ------------------------------------------------------------------------------------- selection


def test_a_table_that_was_never_compacted_is_compacted_bit_by_bit() -> None:
    given = of_rows(*[5] * 1000)
    left = left_alone(given, 50, 10**6)
    assert len(left) == 600
    merged = of_rows(*[5] * 600, 1000, 1000)
    assert len(left_alone(merged, 50, 10**6)) < 602
    assert 601 not in left_alone(merged, 50, 10**6), "the newest are always taken"
    grown = of_rows(*[5] * 600, 1000, *[5] * 60)
    assert 600 in left_alone(grown, 50, 10**6), "what was merged is not merged again and again"


def test_full_fragments_are_no_backlog() -> None:
    given = of_rows(*[2_000_000] * 900, *[5] * 60)
    assert left_alone(given, 50, 10**9) == list(range(900))


# ---------------------------------------------------------------------------------- a small week


def test_a_week_in_small_stays_as_it_was_after_its_first_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`python -m benchmarks.week` in small: it fails without the default."""
    from benchmarks import week

    monkeypatch.setattr(upkeep, "LEAST_KEPT_SECONDS", 600)
    monkeypatch.setattr(upkeep, "MOST_VERSIONS", 150)
    monkeypatch.setattr(upkeep, "_VERSIONS", 30)
    monkeypatch.setattr(upkeep, "_FRAGMENTS", 10)
    monkeypatch.setattr(autocompact, "_EVERY", 10)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = week.main(["--epochs", "600", "--first", "300", "--rows", "5"])
    assert not kept["why"]
    for name in ("fragments", "versions", "history_bytes", "beside_bytes"):
        assert kept[name]["ratio"] <= 1.2, (name, kept[name])
    off = week.main(["--epochs", "300", "--first", "150", "--rows", "5", "--off"])
    assert off["fragments"]["ratio"] > 1.5
    assert off["history_bytes"]["ratio"] > 2
