"""Side tables on the twin: every crash between two commits, stale drivers, lost tables."""

from __future__ import annotations

import pytest

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetRestoredError,
    FencedError,
    ProtocolVersionError,
    SideTableError,
)
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnRestore
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.sides import decode_sides, encode_side, side_key, uri_beside
from tests.support.drivers import QUERY, QUICK
from tests.support.side_drivers import (
    DIGEST,
    MAIN,
    Crash,
    SideDriver,
    Store,
    expect,
    rows_of,
    uri_of,
)

OTHER = "f" * 64


def run(store: Store, log: dict[str, int], epochs: int, *, release: bool = True) -> SideDriver:
    driver = SideDriver(store, log)
    while log.get("committed", -1) < epochs - 1:
        driver.step()
    if release and driver.main.owner:
        assert driver.sides.release()
    return driver


def owner_state(store: Store, uri: str) -> OwnerState:
    port = store.open(uri)
    owner = decode_query(port.config, QUERY, port.version).owner
    assert owner
    return owner.state


def test_rows_reach_every_table_once_and_all_are_released() -> None:
    store, log = Store(), {}
    run(store, log, 8)
    expect(store, 8)
    registered = decode_sides(store.open(MAIN).config, QUERY)
    assert registered == {name: uri_of(name) for name in ("five", "three", "two")}
    assert {owner_state(store, uri) for uri in store.datasets} == {OwnerState.RELEASED}


def test_epoch_without_side_rows_costs_no_commit_and_no_request_more() -> None:
    plain, sided = Store(), Store()
    for store, divide in ((plain, lambda n: {"": rows_of(n)[""]}), (sided, rows_of)):
        driver = SideDriver(store, {}, divide=divide)
        for _ in range(8):
            driver.step()
    assert len(plain.datasets) == 1
    assert plain.commits == 1 + 8 + 2  # claim, epochs, folds
    assert not any("side" in name for name in plain.open(MAIN).config)


def commits_of_a_run(epochs: int) -> int:
    store = Store()
    run(store, {}, epochs)
    return store.commits


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_any_commit_loses_and_doubles_nothing(after: bool) -> None:
    for crash_at in range(commits_of_a_run(8)):
        store, log = Store(crash_at=crash_at, after=after), {}
        with pytest.raises(Crash):
            run(store, log, 8)
        store.crash_at = None
        run(store, log, 8)
        expect(store, 8)
        assert {owner_state(store, uri) for uri in store.datasets} == {OwnerState.RELEASED}


def test_two_crashes_in_a_row_lose_and_double_nothing() -> None:
    for first in range(0, commits_of_a_run(4), 2):
        for second in range(1, 12, 2):
            store, log = Store(crash_at=first, after=bool(first % 4)), {}
            with pytest.raises(Crash):
                run(store, log, 4)
            store.crash_at = store.commits + second // 2
            try:
                run(store, log, 4)
            except Crash:
                store.crash_at = None
                run(store, log, 4)
            expect(store, 4)


@pytest.mark.parametrize("name", ["two", "new"])
def test_stale_driver_writes_into_no_side_table(name: str) -> None:
    store, log = Store(), {}
    stale = run(store, log, 4, release=False)
    heir = SideDriver(store, dict(log))
    with pytest.raises(FencedError):
        stale.append(name, 4, [{"id": 99}])
    heir.log = log
    while log["committed"] < 7:
        heir.step()
    expect(store, 8)
    assert 99 not in store.rows(uri_of(name))


def test_stale_driver_that_planned_first_writes_nothing_the_heir_does_not_skip() -> None:
    # It commits to a side table before the heir begins, and hangs before the own table's commit.
    store, log = Store(), {}
    stale = run(store, log, 5, release=False)
    log["planned"] = 5
    stale.append("two", 5, rows_of(5)["two"])
    heir = SideDriver(store, log)
    with pytest.raises(FencedError):
        stale.append("three", 5, [{"id": 99}])
    while log["committed"] < 7:
        heir.step()
    expect(store, 8)


def test_hung_driver_does_not_register_a_side_table_after_it_was_fenced() -> None:
    store, log = Store(), {}
    stale = run(store, log, 1, release=False)
    claim = stale.main.register_side
    heirs = []

    def hang(name: str, uri: str) -> None:
        heirs.append(SideDriver(store, dict(log)))
        claim(name, uri)

    stale.main.register_side = hang  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        stale.append("two", 1, [{"id": 99}])
    assert not decode_sides(store.open(MAIN).config, QUERY)
    heirs[0].log = log
    while log["committed"] < 7:
        heirs[0].step()
    expect(store, 8)


def test_own_table_stays_active_where_a_side_table_could_not_be_released() -> None:
    store, log = Store(), {}
    driver = run(store, log, 4, release=False)
    driver.sides.sessions["two"].release = lambda: False  # type: ignore[method-assign]
    assert not driver.sides.release()
    assert owner_state(store, MAIN) is OwnerState.ACTIVE
    run(store, log, 8)
    expect(store, 8)


def test_sparse_side_table_is_released_although_others_commit_to_it() -> None:
    store, log = Store(), {}
    driver = run(store, log, 7, release=False)
    store.datasets[uri_of("three")].compact()
    assert driver.sides.release()
    state = decode_query(store.open(uri_of("three")).config, QUERY, 99)
    assert (state.watermark, state.done and state.done.epoch_id) == (4, 6)


# --------------------------------------------------------------------------------------- refusals


def test_missing_side_table_is_refused_until_it_is_forgotten() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    del store.datasets[uri_of("two")]
    before = store.commits
    with pytest.raises(SideTableError, match=r"'two' of memory://orders.*is missing") as refused:
        SideDriver(store, log)
    assert store.commits == before
    forget = side_key(QUERY, "two")
    line = f"lance-stream resolve side {MAIN} {QUERY} --name two --yes"
    assert line in str(refused.value)
    store.datasets[MAIN].commit(store.datasets[MAIN].version, Configure({forget: None}), {})
    run(store, log, 8)
    assert sorted(store.rows(uri_of("two"))) == [50, 51, 70, 71]


def test_recreated_side_table_is_refused() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    store.datasets[uri_of("two")].recreate()
    with pytest.raises(SideTableError, match="has no trace of the query at version 1"):
        SideDriver(store, log)


def test_restored_side_table_is_refused_until_the_loss_is_accepted() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    store.datasets[uri_of("two")].restore(1)  # before the first epoch: no trace is left
    with pytest.raises(DatasetRestoredError, match=r"side table 'two'.*accept:1-3"):
        SideDriver(store, log)
    accepted = CommitPolicy(backoff=QUICK, on_restore=OnRestore(1, 3))
    driver = SideDriver(store, log, policy=accepted)
    while log["committed"] < 7:
        driver.step()
    assert sorted(store.rows(uri_of("two"))) == [50, 51, 70, 71]


def test_answer_about_lost_epochs_is_for_one_dataset() -> None:
    store, log = Store(), {}
    run(store, log, 5)
    for name in ("two", "three"):
        store.datasets[uri_of(name)].restore(2)  # with the claim
    with pytest.raises(DatasetRestoredError, match="side table 'three'"):
        SideDriver(store, log)
    accepted = CommitPolicy(backoff=QUICK, on_restore=OnRestore(0, 5))
    with pytest.raises(DatasetRestoredError, match="side table 'two'"):
        SideDriver(store, log, policy=accepted)


def test_side_table_registered_with_another_uri_is_refused() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    with pytest.raises(SideTableError, match="registered at memory://orders.five, and the options"):
        SideDriver(store, log, expected=lambda name: f"memory://elsewhere.{name}")


def test_epoch_in_flight_is_refused_under_other_options_and_others_are_not() -> None:
    store, log = Store(), {}
    driver = run(store, log, 5, release=False)
    log["planned"] = 5
    driver.append("two", 5, rows_of(5)["two"])
    for _ in range(2):  # as often as it is started
        with pytest.raises(SideTableError, match=r"has epoch 5 .* other options"):
            SideDriver(store, log, digest=OTHER)
    SideDriver(store, log).step()
    again = SideDriver(store, log, digest=OTHER)
    while log["committed"] < 7:
        again.step()
    expect(store, 8)


def test_epoch_of_other_options_is_refused_after_its_fold_too() -> None:
    store, log = Store(), {}
    driver = SideDriver(store, log, policy=CommitPolicy(watermark_every=1, backoff=QUICK))
    driver.step()
    log["planned"] = 1
    driver.append("two", 1, rows_of(1)["two"])
    state = decode_query(store.open(uri_of("two")).config, QUERY, 99)
    assert state.done is not None
    assert (state.done.epoch_id, state.done.digest) == (1, DIGEST)
    with pytest.raises(SideTableError, match="has epoch 1"):
        SideDriver(store, log, digest=OTHER)


def test_side_table_of_another_checkpoint_is_refused_by_name() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    store.create(MAIN)  # dropped and created again, and its side tables were not
    fresh = SideDriver(store, {}, checkpoint_id="another")
    fresh.step()
    with pytest.raises(CheckpointMismatchError, match="side table 'two'"):
        fresh.step()


def test_new_generation_is_one_of_every_side_table_at_once() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    policy = CommitPolicy(backoff=QUICK, new_generation=True)
    fresh = SideDriver(store, {}, checkpoint_id="another", policy=policy)
    fresh.step()  # epoch 0 has no rows for any of them
    assert fresh.sides.release()
    log = fresh.log
    again = SideDriver(store, log, checkpoint_id="another")
    while log["committed"] < 7:
        again.step()
    twice = [n for n in range(4) for _ in range(2)] + [4, 5, 6, 7]
    for name in ("", "two", "three", "five"):
        sent = sorted(row["id"] for n in twice for row in rows_of(n).get(name, []))
        assert sorted(store.rows(uri_of(name) if name else MAIN).elements()) == sent


def test_new_generation_survives_a_crash_at_any_commit() -> None:
    for crash_at in range(20):
        store, log = Store(), {}
        run(store, log, 4)
        store.crash_at = store.commits + crash_at
        policy = CommitPolicy(backoff=QUICK, new_generation=True, watermark_every=3)
        log = {}
        for _ in range(2):
            try:
                driver = SideDriver(store, log, checkpoint_id="another", policy=policy)
                while log.get("committed", -1) < 3:
                    driver.step()
                driver.sides.release()
            except Crash:
                store.crash_at = None
        for name in ("", "two", "three"):
            counts = store.rows(uri_of(name) if name else MAIN).values()
            assert set(counts) == {2}, (crash_at, name)


def test_own_table_restored_to_before_a_registration_finds_its_side_table_again() -> None:
    store, log = Store(), {}
    run(store, log, 1)
    before = store.datasets[MAIN].version
    run(store, log, 4, release=False)
    store.datasets[MAIN].restore(before)
    with pytest.raises(DatasetRestoredError):
        SideDriver(store, log)
    policy = CommitPolicy(backoff=QUICK, on_restore=OnRestore(1, 3))
    driver = SideDriver(store, log, policy=policy)
    while log["committed"] < 7:
        driver.step()
    assert sorted(store.rows(uri_of("two"))) == [10, 11, 30, 31, 50, 51, 70, 71]


# ------------------------------------------------------------------------------------- registration


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"protocol":1,"uri":""}', '{"protocol":1,"uri":3}', '{"uri":"a"}']
)
def test_registration_that_no_version_writes_is_refused(text: str) -> None:
    with pytest.raises(ProtocolVersionError, match="side.orders/two"):
        decode_sides({side_key(QUERY, "two"): text}, QUERY)


def test_registration_of_another_query_is_not_read() -> None:
    config = encode_side("orders.two", "late", "memory://x") | encode_side(QUERY, "a", "memory://y")
    assert decode_sides({k: v or "" for k, v in config.items()}, QUERY) == {"a": "memory://y"}


def test_newer_registration_is_refused() -> None:
    with pytest.raises(ProtocolVersionError, match="2"):
        decode_sides({side_key(QUERY, "two"): '{"protocol":2}'}, QUERY)


@pytest.mark.parametrize(
    ("uri", "beside"),
    [
        ("/lake/orders.lance", "/lake/orders.quarantine.lance"),
        ("s3://lake/orders.lance/", "s3://lake/orders.quarantine.lance"),
        ("/lake/orders", "/lake/orders.quarantine.lance"),
    ],
)
def test_side_table_lies_beside_its_table(uri: str, beside: str) -> None:
    assert uri_beside(uri, "quarantine") == beside


def test_fenced_driver_takes_no_side_table_from_its_successor() -> None:
    store, log = Store(), {}
    run(store, log, 4)
    stale = SideDriver(store, log)
    stale.step()  # epoch 4 has rows for `three` alone
    heir = SideDriver(store, log)
    heir.step()  # epoch 5 has rows for `two`, which was released
    with pytest.raises(FencedError):
        stale.append("two", 5, rows_of(5)["two"])
    while log["committed"] < 7:
        heir.step()
    assert heir.sides.release()
    expect(store, 8)
