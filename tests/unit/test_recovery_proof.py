"""What config and drivers say was committed, and what the versions say to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.diagnostics.evidence import Contradiction
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.protocol.codec import encode_owner, key
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.supervision.driver_reports import EndReason
from tests.support.maintenance import numbers
from tests.support.recovery_stream import HERE, L1, L2, Stream, warning_codes


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path)
    for epoch_id in range(3):
        made.commit(epoch_id)
    made.beat()
    return made


def test_epoch_in_the_version_of_the_summary_is_no_contradiction(stream: Stream) -> None:
    stream.end(L1, last_epoch=2, version=stream.committer.port.version, rows=9)
    assert stream.look().contradictions == ()


def test_version_above_the_newest_is_a_contradiction(stream: Stream) -> None:
    version = stream.committer.port.version
    stream.beat(sink={"epoch": 5, "rows": 1, "version": version + 3, "watermark": 5})
    seen = stream.look()
    assert seen.contradictions == (Contradiction(L1, 5, version + 3, 2, version),)
    assert warning_codes(seen) == [Code.COMMIT_LOG_AHEAD]


def test_missing_version_of_a_fold_is_no_contradiction(stream: Stream) -> None:
    """The version that a driver names is that of its fold; the epoch is in one before."""
    ahead = stream.committer.port.version + 1
    stream.beat(sink={"epoch": 2, "rows": 1, "version": ahead, "watermark": 2})
    assert stream.look().contradictions == ()


def test_version_above_the_newest_is_a_contradiction_after_a_cleanup_too(stream: Stream) -> None:
    lance.dataset(stream.uri).insert(lance.dataset(stream.uri).to_table().slice(0, 0))
    newest = open_dataset(stream.uri).version
    lance.dataset(stream.uri).cleanup_old_versions(versions=numbers(stream.uri)[:-1])
    stream.beat(sink={"epoch": 9, "rows": 1, "version": newest + 1, "watermark": 2})
    assert stream.look().contradictions == (Contradiction(L1, 9, newest + 1),)


def test_epoch_missing_in_its_version_is_a_contradiction(stream: Stream) -> None:
    version = stream.committer.port.version
    stream.beat(sink={"epoch": 5, "rows": 1, "version": version, "watermark": 5})
    assert stream.look().contradictions == (Contradiction(L1, 5, version, 2, version),)


def test_missing_epoch_between_two_others_is_a_contradiction(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for epoch_id in (0, 1, 3):
        stream.commit(epoch_id)
    version = stream.committer.port.version
    stream.beat(sink={"epoch": 2, "rows": 1, "version": version, "watermark": 3})
    assert stream.look().contradictions == (Contradiction(L1, 2, version, 1, version - 1),)


def test_folded_epoch_without_a_version_of_its_generation_is_a_contradiction(
    stream: Stream,
) -> None:
    stream.committer.release()
    owner = stream.look().state.owner
    assert owner
    updates = {key("owner", "q"): encode_owner(replace(owner, generation=1))}
    open_dataset(stream.uri).commit(Configure(dict(updates)))
    (said,) = stream.look().contradictions
    assert (said.said_by, said.epoch, said.found_epoch) == ("", 2, -1)


def test_an_empty_epoch_proves_nothing(stream: Stream) -> None:
    version = stream.committer.port.version
    stream.beat(sink={"epoch": 5, "rows": 0, "version": version, "watermark": 2})
    assert stream.look().contradictions == ()


def test_reports_of_another_checkpoint_are_no_contradiction(stream: Stream) -> None:
    """Dataset and checkpoint were both made anew, and its reports still lie beside them."""
    ahead = {"epoch": 50, "rows": 1, "version": 90, "watermark": 50}
    stream.beat(L2, sink=ahead, driver={}, progress={"id": "cp-before"}, time=L2)
    assert stream.look().contradictions == ()


def test_summary_of_a_fenced_driver_is_no_contradiction(stream: Stream) -> None:
    version = stream.committer.port.version
    stream.end(L1, last_epoch=7, version=version, error="FencedError", reason=EndReason.FAILED)
    assert stream.look().contradictions == ()


def test_an_epoch_of_an_earlier_owner_is_no_contradiction(stream: Stream) -> None:
    """It was planned again, written again, and found to be there."""
    version = stream.committer.port.version
    stream.beat(
        L2,
        sink={"epoch": 2, "rows": 1, "version": version, "watermark": 2},
        driver={**HERE.to_json(), "runId": "run-2", "token": 2},
    )
    assert stream.look().contradictions == ()


def test_where_versions_are_gone_nothing_is_contradicted(stream: Stream) -> None:
    lance.dataset(stream.uri).insert(lance.dataset(stream.uri).to_table().slice(0, 0))
    newest = open_dataset(stream.uri).version
    lance.dataset(stream.uri).cleanup_old_versions(versions=numbers(stream.uri)[1:-1])
    stream.beat(sink={"epoch": 9, "rows": 1, "version": newest, "watermark": 2})
    assert stream.look().contradictions == ()


@pytest.mark.parametrize("folded", [False, True])
def test_config_watermark_above_the_versions_is_a_contradiction(
    stream: Stream, folded: bool
) -> None:
    if folded:
        assert stream.committer.release()
    assert stream.look().contradictions == ()
    stream.world.open().commit(Configure({"spark.lance.streaming.lastEpoch.q": "9"}))
    (said,) = stream.look().contradictions
    assert (said.said_by, said.epoch) == ("", 9)
    assert said.found_epoch == (2 if folded else -1)


def test_restored_version_gives_the_undone_epochs(stream: Stream) -> None:
    stream.commit(3)
    stream.beat()
    newest = open_dataset(stream.uri).version
    lance.dataset(stream.uri).checkout_version(newest - 2).restore()
    (undone,) = stream.look().undone
    assert (undone.version, undone.restored) == (newest + 1, newest - 2)
    assert [stamp.epoch_id for stamp in undone.stamps] == [2, 3]
    stream.world.open().dataset.delete("false")
    assert len(stream.look().undone) == 1
