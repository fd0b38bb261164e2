"""LanceRecoveryCheckOperator on real datasets whose drivers are dead."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.recovery import LanceRecoveryCheckOperator
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.maintenance import files
from tests.support.wreck import ELSEWHERE, Wreck, whole

from .conftest import SECRET, AddConnection, Shown, TaskInstance

ORDERS = ["orders"]


def run(ti: TaskInstance, uri: str, **changes: Any) -> dict[str, Any]:
    arguments = {"task_id": "check", "uri": uri, "lance_conn_id": None}
    context: Any = {"ti": ti}
    return LanceRecoveryCheckOperator(**(arguments | changes)).execute(context)


def codes(report: dict[str, Any]) -> list[str]:
    return [each["code"] for each in report["findings"]]


@pytest.fixture
def wreck(tmp_path: Path) -> Wreck:
    return Wreck(tmp_path)


def test_a_healthy_stream_passes_and_nothing_is_changed(
    wreck: Wreck, ti: TaskInstance, shown: Shown
) -> None:
    wreck.run(3, released=True)
    before = files(wreck.uri)
    report = run(ti, wreck.uri, repair=["watermark", "owner"], fail_on="warning")
    assert json.loads(json.dumps(report)) == report, "fit for XCom"
    assert codes(report) == ["LS000"]
    assert report["repaired"] == []
    assert ti.xcoms["return_value"] == report
    assert "healthy" in ti.xcoms["message"]
    assert "LS000" in shown(), "the table is in the log"
    assert files(wreck.uri) == before


def test_a_finding_fails_the_task_with_what_to_type_and_the_report_is_there(
    wreck: Wreck, ti: TaskInstance, shown: Shown
) -> None:
    wreck.run(3)
    before = files(wreck.uri)
    with pytest.raises(AirflowFailException) as failed:
        run(ti, wreck.uri)
    message = ti.xcoms["message"]
    assert str(failed.value) == message
    assert "LS102" in message
    assert f"lance-stream release {wreck.uri} orders --for-good --yes" in message
    assert "LS102" in codes(ti.xcoms["return_value"])
    assert "LS102" in shown()
    assert files(wreck.uri) == before, "nobody said that it may repair anything"


def test_a_healthy_stream_passes_whatever_fails_the_task(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(3, released=True)
    assert codes(run(ti, wreck.uri, fail_on="info")) == ["LS000"]


def test_a_finding_of_severity_info_fails_the_task_that_asks_for_it(
    wreck: Wreck, ti: TaskInstance
) -> None:
    wreck.run(3, unlogged=1, released=True)
    report = run(ti, wreck.uri)
    assert {each["severity"] for each in report["findings"]} == {"info"}
    assert sorted(codes(report)) == ["LS000", "LS202"]
    with pytest.raises(AirflowFailException, match=r": 1 info\nLS202 orders:"):
        run(ti, wreck.uri, fail_on="info")


@pytest.mark.parametrize("fail_on", ["critical", "CRITICAL ", "never"])
def test_fails_only_from_the_severity_on(wreck: Wreck, ti: TaskInstance, fail_on: str) -> None:
    wreck.run(3)
    assert "LS102" in codes(run(ti, wreck.uri, fail_on=fail_on))


def test_an_owner_proven_dead_is_released_and_the_stream_goes_on_exactly(
    wreck: Wreck, ti: TaskInstance, shown: Shown
) -> None:
    wreck.run(3, unlogged=1)
    with pytest.raises(AirflowFailException, match="LS102 orders: Nobody runs query orders: rel"):
        run(ti, wreck.uri, repair=["owner"])
    report = ti.xcoms["return_value"]
    assert "\nRepaired: token 1 released by dag/stream/run" in ti.xcoms["message"]
    [status] = report["statuses"]
    assert (status["state"], status["healthy"]) == ("dead", False), "a release starts no driver"
    [action] = report["repaired"]
    assert (action["what"], action["queryId"], action["outcome"]) == (
        "owner",
        "orders",
        "Repaired",
    )
    assert "token 1 active, folded watermark -1" in action["before"]
    assert "token 2 released, folded watermark 2" in action["after"]
    text = shown()
    assert action["before"] in text
    assert action["after"] in text
    assert wreck.owner.state is OwnerState.RELEASED
    assert "dag/stream/run/-1#1" in wreck.owner.driver.run_id, "who released is on record"
    wreck.run(2, released=True)
    assert wreck.ids == whole(4)


def test_operator_repairs_only_what_is_named(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(3)
    with pytest.raises(AirflowFailException, match="LS102"):
        run(ti, wreck.uri, repair=["watermark"])
    assert (wreck.watermark, wreck.owner.state) == (2, OwnerState.ACTIVE)
    assert [each["what"] for each in ti.xcoms["return_value"]["repaired"]] == ["watermark"]
    run(ti, wreck.uri, repair=["owner"], fail_on="never")
    assert wreck.owner.state is OwnerState.RELEASED


def test_a_driver_that_cannot_be_seen_is_never_released_without_asking(
    wreck: Wreck, ti: TaskInstance
) -> None:
    wreck.run(3, process=ELSEWHERE)
    run(ti, wreck.uri, repair=["watermark", "owner"], fail_on="never")
    assert wreck.owner.state is OwnerState.ACTIVE


def test_a_driver_that_lives_is_left_alone(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(3, process=ProcessIdentity.of(os.getpid()))
    version = wreck.version
    run(ti, wreck.uri, repair=["owner"])
    release = {"epoch": 2, "proven_dead": True}
    with pytest.raises(AirflowFailException, match="is alive"):
        run(ti, wreck.uri, query_ids=ORDERS, release=release)
    assert "Refused: DriverAliveError: " in ti.xcoms["message"]
    assert wreck.version == version


def test_unsafe_repair_is_refused_with_the_reason(
    wreck: Wreck, ti: TaskInstance, shown: Shown
) -> None:
    wreck.run(3, unlogged=1)
    wreck.clean_up()
    version = wreck.version
    with pytest.raises(AirflowFailException, match=r"LS205[\s\S]*\nNot repaired: HistoryGapError"):
        run(ti, wreck.uri, repair=["watermark", "owner"])
    [action] = ti.xcoms["return_value"]["repaired"]
    assert (action["outcome"], action["before"]) == ("Not repaired", action["after"])
    assert "HistoryGapError" in action["sentence"]
    assert "Not repaired: HistoryGapError" in shown()
    assert wreck.version == version


def test_nothing_is_repaired_when_rows_are_lost(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(5)
    lance.dataset(wreck.uri, version=4).restore()
    version = wreck.version
    with pytest.raises(AirflowFailException, match="LS204"):
        run(ti, wreck.uri, repair=["watermark", "owner"])
    assert ti.xcoms["return_value"]["repaired"] == []
    assert wreck.version == version


class TestDecisions:
    """What is done only because somebody said so, and named the epoch."""

    def test_operator_releases_a_driver_on_another_host_with_proven_dead(
        self, wreck: Wreck, ti: TaskInstance
    ) -> None:
        wreck.run(3, process=ELSEWHERE)
        told: Any = {"query_ids": ORDERS, "release": {"epoch": "2", "proven_dead": "true"}}
        report = run(ti, wreck.uri, **told, fail_on="critical")
        assert codes(report) == ["LS102"]
        assert report["repaired"][0]["what"] == "release"
        wreck.run(1, released=True)
        assert wreck.ids == whole(4)

    def test_releases_a_driver_that_fell_silent_elsewhere(
        self, wreck: Wreck, ti: TaskInstance
    ) -> None:
        wreck.run(3, process=ELSEWHERE, heartbeat_age=timedelta(hours=1))
        with pytest.raises(AirflowFailException, match="LS102"):
            run(ti, wreck.uri, repair=["owner"])
        [found] = [e for e in ti.xcoms["return_value"]["findings"] if e["code"] == "LS102"]
        assert found["evidence"]["proven"] is False
        release = {"epoch": found["evidence"]["watermark"]}
        with pytest.raises(
            AirflowFailException, match=r"DriverAliveError: .*worker-9.*--proven-dead"
        ):
            run(ti, wreck.uri, query_ids=ORDERS, release=release)
        release |= {"proven_dead": True, "for_good": True}
        assert codes(run(ti, wreck.uri, query_ids=ORDERS, release=release)) == ["LS000"]
        assert ti.xcoms["return_value"]["statuses"][0]["state"] == "stopped"

    def test_a_decision_is_worth_nothing_once_the_query_has_gone_on(
        self, wreck: Wreck, ti: TaskInstance
    ) -> None:
        wreck.run(3)
        version = wreck.version
        with pytest.raises(AirflowFailException, match="epoch watermark 2 now.*about epoch 1"):
            run(ti, wreck.uri, query_ids=ORDERS, release={"epoch": 1, "proven_dead": True})
        assert "LS102" in codes(ti.xcoms["return_value"]), "the report is told all the same"
        assert wreck.version == version

    @pytest.mark.parametrize("landed", [True, False])
    def test_an_answer_for_the_epoch_in_doubt_leaves_every_row_once(
        self, wreck: Wreck, ti: TaskInstance, landed: bool
    ) -> None:
        if landed:
            wreck.run(3, unlogged=1)
        else:
            wreck.run(2)
            wreck.plan(2)
        wreck.clean_up()
        gap = {"epoch": 2, "landed": landed, "after_version": wreck.folded}
        report = run(ti, wreck.uri, query_ids=ORDERS, resolve_gap=gap, fail_on="critical")
        assert "LS205" not in codes(report)
        wreck.run(2, released=True)
        assert wreck.ids == whole(4)

    def test_only_the_epoch_in_doubt_can_be_answered_for(
        self, wreck: Wreck, ti: TaskInstance
    ) -> None:
        wreck.run(3, unlogged=1)
        wreck.clean_up()
        version = wreck.version
        gap = {"epoch": 7, "landed": True, "after_version": wreck.folded}
        with pytest.raises(AirflowFailException, match="PreconditionError: epoch 7 .*, epoch 2 is"):
            run(ti, wreck.uri, query_ids=ORDERS, resolve_gap=gap)
        assert wreck.version == version

    def test_an_answer_to_an_earlier_gap_is_refused(self, wreck: Wreck, ti: TaskInstance) -> None:
        wreck.run(3, unlogged=1)
        wreck.clean_up()
        earlier = {"epoch": 2, "landed": False, "after_version": wreck.folded - 1}
        with pytest.raises(AirflowFailException, match="folded at version .* Check again"):
            run(ti, wreck.uri, query_ids=ORDERS, resolve_gap=earlier)
        assert "LS205" in codes(ti.xcoms["return_value"])

    def test_another_checkpoint_begins_a_new_generation(
        self, wreck: Wreck, ti: TaskInstance, tmp_path: Path
    ) -> None:
        wreck.run(3, released=True)
        other = tmp_path / "checkpoints" / "other"
        other.mkdir()
        (other / "metadata").write_text('{"id": "id-of-other"}')
        with pytest.raises(AirflowFailException, match="LS302"):
            run(ti, wreck.uri, query_ids=ORDERS, checkpoint_location=str(other))
        told = {"epoch": 2, "location": str(other)}
        decided: Any = {"resolve_checkpoint": told, "fail_on": "critical"}
        report = run(ti, wreck.uri, query_ids=ORDERS, **decided)
        assert codes(report) == ["LS102"], "it is still to be started"
        assert wreck.owner.generation == 1


def test_all_queries_or_those_that_are_named(tmp_path: Path, ti: TaskInstance) -> None:
    orders, refunds = (Wreck(tmp_path, query_id=name) for name in ("orders", "refunds"))
    orders.run(1, released=True)
    refunds.run(1)
    assert codes(run(ti, orders.uri, query_ids=ORDERS)) == ["LS000"]
    with pytest.raises(AirflowFailException, match="refunds"):
        run(ti, orders.uri)
    report = run(ti, orders.uri, fail_on="never")
    assert {each["queryId"] for each in report["statuses"]} == {"orders", "refunds"}


def test_unknown_query_is_refused_unless_its_checkpoint_is_given(
    wreck: Wreck, ti: TaskInstance, tmp_path: Path
) -> None:
    wreck.run(1, released=True)
    said = r"\['order'\]; .*\['orders'\]"
    with pytest.raises(AirflowFailException, match=said):
        run(ti, wreck.uri, query_ids=["order"])
    anew = Wreck(tmp_path, "anew.lance")
    place = str(wreck.checkpoint)
    with pytest.raises(AirflowFailException, match="LS204"):
        run(ti, anew.uri, query_ids=ORDERS, checkpoint_location=place)


def test_tolerance_says_what_counts_as_trouble(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(3, released=True)
    tight = {"small_fragments": 2, "stall": timedelta(minutes=15), "silence": 60}
    assert codes(run(ti, wreck.uri, tolerance=tight)) == ["LS402", "LS000"]
    with pytest.raises(AirflowFailException, match="LS402"):
        run(ti, wreck.uri, tolerance=tight, fail_on="warning")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repair": ["watermark", "gap"]}, r"unknown \['gap'\].*\['watermark', 'owner'\]"),
        ({"repair": 3}, "repair must be"),
        ({"fail_on": "fatal"}, r"\['info', 'warning', 'error', 'critical', 'never'\].*'fatal'"),
        ({"fail_on": None}, "fail_on must be"),
        ({"tolerance": {"lag": 3}}, r"tolerance: unknown \['lag'\].*'stall'"),
        ({"tolerance": {"stall": "soon"}}, "stall must be .* got 'soon'"),
        ({"tolerance": {"versions": 0}}, "versions must be .* got 0"),
        ({"tolerance": 5}, "tolerance must be"),
        ({"query_ids": "orders"}, "query_ids must be"),
        ({"release": {"epoch": 2}}, "release .*query_ids"),
        ({"query_ids": ["a", "b"], "release": {"epoch": 2}}, r"release .*query_ids.*\['a', 'b'\]"),
        ({"checkpoint_location": "/c"}, "checkpoint_location .*query_ids"),
        ({"query_ids": ORDERS, "release": {}}, "release: epoch must be.*None"),
        ({"query_ids": ORDERS, "release": {"epoch": "two"}}, "release: epoch must be.*'two'"),
        ({"query_ids": ORDERS, "release": {"epoch": 2, "dead": 1}}, r"unknown \['dead'\]"),
        ({"query_ids": ORDERS, "resolve_gap": {"epoch": 2}}, "landed must be"),
        (
            {"query_ids": ORDERS, "resolve_gap": {"epoch": 2, "landed": True}},
            "after_version must be",
        ),
        ({"query_ids": ORDERS, "resolve_checkpoint": {"epoch": 2}}, "location must name"),
        (
            {"query_ids": ORDERS, "release": {"epoch": 2}, "resolve_gap": {"epoch": 2}},
            "two decisions",
        ),
    ],
)
def test_bad_input_fails_without_a_retry_before_anything_is_touched(
    wreck: Wreck, ti: TaskInstance, changes: dict[str, Any], said: str
) -> None:
    wreck.run(3)
    before = files(wreck.uri)
    arguments: dict[str, Any] = {"task_id": "check", "uri": wreck.uri, "lance_conn_id": None}
    with pytest.raises(SpecError, match=said):
        LanceRecoveryCheckOperator(**(arguments | {"repair": ["owner"]} | changes))
    task = LanceRecoveryCheckOperator(**arguments, repair=["owner"])
    for name, value in changes.items():  # as its templates were rendered
        setattr(task, name, value)
    context: Any = {"ti": ti}
    with pytest.raises(AirflowFailException, match=f"SpecError: .*{said}"):
        task.execute(context)
    assert files(wreck.uri) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"uri": "{{ params.uri }}", "lance_conn_id": "lake"},
        {"query_ids": ["{{ params.query }}"], "release": {"epoch": 2}},
        {"query_ids": ORDERS, "release": {"epoch": "{{ params.epoch }}"}},
        {"fail_on": "{{ params.fail_on }}"},
        {"tolerance": {"stall": "{{ params.stall }}"}},
        {"repair": ["{{ params.repair }}"]},
    ],
)
def test_templated_arguments_are_not_checked_before_they_are_rendered(
    changes: dict[str, Any],
) -> None:
    arguments = {"task_id": "check", "uri": "/data/orders.lance", "lance_conn_id": None}
    LanceRecoveryCheckOperator(**(arguments | changes))


def test_a_dataset_that_is_not_there_fails_without_a_retry(
    tmp_path: Path, ti: TaskInstance
) -> None:
    with pytest.raises(AirflowFailException, match=r"^DatasetNotFoundError: .*nothing\.lance"):
        run(ti, str(tmp_path / "nothing.lance"))


def test_commands_name_the_connection_and_no_secret_is_shown(
    wreck: Wreck, tmp_path: Path, ti: TaskInstance, add_connection: AddConnection, shown: Shown
) -> None:
    wreck.run(3)
    extra = {"base_uri": str(tmp_path), "storage_options": {"secret_access_key": SECRET}}
    add_connection("lance_here", conn_type="lance", extra=extra)
    with pytest.raises(AirflowFailException) as failed:
        run(ti, "orders.lance", lance_conn_id="lance_here")
    assert f"release {wreck.uri} orders --for-good --yes --conn-id lance_here" in str(failed.value)
    how: Any = {"lance_conn_id": "lance_here", "fail_on": "never"}
    report = run(ti, "orders.lance", **how, repair=["owner"])
    assert SECRET not in json.dumps(report) + shown() + json.dumps(ti.xcoms) + str(failed.value)


def test_a_dataset_on_this_hosts_disk_has_no_link(wreck: Wreck, ti: TaskInstance) -> None:
    wreck.run(1, released=True)
    run(ti, wreck.uri)
    assert ti.xcoms["lance_dataset"] == ""


def test_a_dataset_that_no_stream_writes_is_checked_as_well(
    tmp_path: Path, ti: TaskInstance
) -> None:
    uri = str(tmp_path / "plain.lance")
    lance.write_dataset(lance.dataset(Wreck(tmp_path).uri).to_table(), uri)
    report = run(ti, uri, fail_on="info")
    assert report["statuses"] == []
