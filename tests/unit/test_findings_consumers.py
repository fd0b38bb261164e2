"""Consumers that lag, are gone or lose their versions: on real datasets, as a check sees them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.cli.main import build_parser
from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus, collect_consumers
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.unread import UnreadVersions
from airflow_provider_lance.maintenance.cleanup import Retention, clean_up
from airflow_provider_lance.protocol.consumers import CONSUMER_RETENTION
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from tests.support.consumers import READER, leave, position, spoil
from tests.support.maintenance import age, append, make

HOUR, DAY = 3600, 24 * 3600


def seen(uri: str) -> ConsumerStatus:
    [status] = collect_consumers(open_dataset(uri))
    return status


def checked(uri: str, **tolerance: Any) -> CheckReport:
    return check(open_dataset(uri), tolerance=Tolerance(**tolerance))


def only(uri: str, **tolerance: Any) -> Finding:
    """Return the one finding, which says all that an on-call engineer needs."""
    [found] = checked(uri, **tolerance).findings
    assert "None" not in f"{found.summary} {found.cause} {found.command}"
    assert found.cause
    words = shlex.split(found.command)
    assert words[0] == "lance-stream"
    build_parser().parse_args(words[1:])
    assert found.evidence["consumerId"] == READER
    assert f"onsumer {READER}" in found.summary
    return found


# ------------------------------------------------------------------------------ how far it has read


def test_a_consumer_that_has_read_everything_is_not_behind(tmp_path: Path) -> None:
    uri = make(tmp_path, 4)
    leave(uri, 4, uri="/data/hourly.lance")
    status = seen(uri)
    assert (status.versions_behind, status.seconds_behind, status.unread_version) == (0, 0, None)
    assert (status.position, status.needs, status.uri) == ("version 4", 4, "/data/hourly.lance")
    assert checked(uri).findings == ()


def test_versions_that_change_no_rows_are_not_unread(tmp_path: Path) -> None:
    """Compactions, indices, settings, other consumers' positions."""
    uri = make(tmp_path, 12)
    leave(uri, 12)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).optimize.optimize_indices()
    lance.dataset(uri).update_config({"a": "b"})
    leave(uri, 3, consumer_id="other")
    assert open_dataset(uri).version > 16
    assert collect_consumers(open_dataset(uri))[0].versions_behind == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: append(dataset.uri, 500),
        lambda dataset: dataset.delete("id < 5"),
        lambda dataset: dataset.update({"epoch": "7"}, where="id < 5"),
        lambda dataset: dataset.checkout_version(2).restore(),
        lambda dataset: lance.write_dataset(dataset.to_table(), dataset.uri, mode="overwrite"),
        lambda dataset: (
            dataset.merge_insert("id")
            .when_matched_delete()
            .execute(dataset.to_table(filter="id < 3"))
        ),
    ],
)
def test_versions_that_change_rows_are_unread(tmp_path: Path, change: Any) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).update_config({"a": "b"})
    change(lance.dataset(uri))
    port = open_dataset(uri)
    assert UnreadVersions().first(port, position(4), port.version) == 6
    assert UnreadVersions().first(port, position(4), 5) is None


def test_an_unread_version_is_as_old_as_its_commit(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    age(uri, 600, [1, 2, 3])
    age(uri, 300, [4, 5, 6])
    leave(uri, 3)
    status = seen(uri)
    assert (status.unread_version, status.versions_behind) == (4, 4)
    assert status.seconds_behind == pytest.approx(300, abs=60)


@pytest.mark.parametrize(
    ("offset", "unread"),
    [({"index": 0}, 3), ({"index": 5}, 3), ({"index": 5, "snapshot": True}, 3), ({}, 4)],
)
def test_a_version_that_is_read_in_part_is_unread(
    tmp_path: Path, offset: dict[str, Any], unread: int
) -> None:
    uri = make(tmp_path, 5)
    leave(uri, 3, **offset)
    assert seen(uri).unread_version == unread


def test_each_version_is_read_once_and_so_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 2)
    for number in range(210):
        lance.dataset(uri).update_config({"a": str(number)})
    append(uri, 500)
    port, asked = open_dataset(uri), list[int]()
    real = LanceDatasetPort.transaction

    def transaction(self: LanceDatasetPort, version: int) -> Any:
        asked.append(version)
        return real(self, version)

    monkeypatch.setattr(LanceDatasetPort, "transaction", transaction)
    unread, consumer = UnreadVersions(), position(2)
    assert unread.first(port, consumer, port.version) == 203, "not known yet"
    assert unread.first(port, consumer, port.version) == 213
    assert unread.first(port, consumer, port.version) == 213
    assert asked == list(range(3, 214))


@pytest.mark.parametrize(
    ("options", "unread"),
    [
        ({}, 5),
        ({"ignore_deletes": True}, 6),
        ({"skip_change_commits": True}, 7),
        ({"ignore_deletes": True, "skip_change_commits": True}, 7),
    ],
)
def test_what_a_consumer_passes_over_is_not_unread(
    tmp_path: Path, options: dict[str, bool], unread: int
) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).delete("id < 5")
    lance.dataset(uri).update({"epoch": "7"}, where="id < 9")
    append(uri, 500)
    consumer = replace(position(4), **options)
    assert UnreadVersions().first(open_dataset(uri), consumer, 7) == unread
    lance.dataset(uri).checkout_version(6).restore()
    stands = replace(consumer, offset=replace(consumer.offset, version=7))
    assert UnreadVersions().first(open_dataset(uri), stands, 8) == 8


def test_a_version_that_is_gone_is_unread(tmp_path: Path) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).update_config({"a": "b"})
    lance.dataset(uri).update_config({"a": "c"})
    lance.dataset(uri).cleanup_old_versions(versions=[5])
    consumer = replace(position(4), skip_change_commits=True)
    assert UnreadVersions().first(open_dataset(uri), consumer, 6) == 5


# -------------------------------------------------------------------------------------- findings


def test_a_consumer_lags_until_it_has_read(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    age(uri, 2 * HOUR)
    leave(uri, 3, uri="/data/hourly.lance")
    found = only(uri)
    assert (found.code, found.severity) == (Code.CONSUMER_LAGS, Severity.WARNING)
    assert "at version 3 and has 4 versions to read" in found.summary
    assert "2 h ago" in found.summary
    # It was heard of a moment ago, so it may run.
    forget = f"lance-stream forget-consumer {uri} --consumer {READER} --proven-dead --yes"
    assert found.command == forget
    assert [step.text.split(",")[0] for step in found.steps] == [
        "If its stream is to run on",
        "If it runs and stays behind",
        "If it is not to run again",
    ]
    assert checked(uri, consumer_lag=3 * HOUR).findings == ()
    leave(uri, 6)
    assert checked(uri).findings == ()


def test_what_was_just_written_is_no_lag(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 3)
    assert checked(uri).findings == ()


@pytest.mark.parametrize(
    ("left", "code"),
    [
        (2 * DAY, None),
        (DAY + 600, None),
        (DAY - 600, Code.CONSUMER_AT_RISK),
        (600, Code.CONSUMER_AT_RISK),
        (-600, Code.CONSUMER_GONE),
    ],
)
def test_a_consumer_that_no_longer_writes_its_position(
    tmp_path: Path, left: float, code: Code | None
) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 3, ago=CONSUMER_RETENTION - left)
    if code is None:
        assert checked(uri).findings == ()
        return
    found = only(uri)
    assert (found.code, found.severity) == (code, Severity.ERROR)
    assert found.command == f"lance-stream forget-consumer {uri} --consumer {READER} --yes"
    assert only(uri, consumer_retention=DAY).code is Code.CONSUMER_GONE
    leave(uri, 3)
    assert checked(uri).findings == ()


def test_a_short_retention_does_not_make_every_consumer_a_finding(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 6, ago=HOUR)
    assert checked(uri, consumer_retention=12 * HOUR).findings == ()
    assert only(uri, consumer_retention=1.5 * HOUR).code is Code.CONSUMER_AT_RISK


def test_a_consumer_whose_versions_are_gone(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 3, ago=CONSUMER_RETENTION + 60)
    clean_up(open_dataset(uri), Retention(older_than=0))
    found = only(uri)
    assert (found.code, found.severity) == (Code.CONSUMER_AT_RISK, Severity.CRITICAL)
    assert "4 of the versions from 3 on are gone" in found.summary
    assert "startingVersion=7 it reads on" in found.steps[1].text
    assert "misses what 4 versions changed" in found.steps[1].text
    assert found.command == f"lance-stream forget-consumer {uri} --consumer {READER} --yes"


def test_versions_that_a_cleanup_takes_beside_the_check_are_not_missing(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 3)
    old = open_dataset(uri)
    leave(uri, 6)
    clean_up(open_dataset(uri), Retention(older_than=0))
    [status] = collect_consumers(old)
    assert (status.version, status.missing_versions) == (6, 0)


def test_a_position_that_cannot_be_read(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    spoil(uri, "\x1b[31m{")
    leave(uri, 2, consumer_id="other")
    found = only(uri)
    assert (found.code, found.severity) == (Code.PROTOCOL_NEWER, Severity.ERROR)
    assert "config key 'spark.lance.streaming.consumer.hourly' holds" in found.summary
    statuses = collect_consumers(open_dataset(uri))
    assert [(each.consumer_id, bool(each.error)) for each in statuses] == [
        (READER, True),
        ("other", False),
    ]


def test_a_report_has_the_consumers_and_a_dataset_without_any_has_none(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    assert checked(uri).to_json()["consumers"] == []
    left = leave(uri, 2)
    [consumer] = checked(uri).to_json()["consumers"]
    assert (consumer["consumerId"], consumer["version"]) == (READER, 2)
    assert consumer["at"] == left.at.isoformat(timespec="seconds")
    assert position(2).offset.version == consumer["version"]
