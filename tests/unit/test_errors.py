from __future__ import annotations

import pytest

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetRestoredError,
    FencedError,
    HistoryGapError,
    SpecError,
    TerminalError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.errors import refuse
from airflow_provider_lance.protocol.model import (
    DoneEpoch,
    Driver,
    EndOffsets,
    EpochStamp,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
)

OWNER = Owner(
    token=9,
    state=OwnerState.ACTIVE,
    generation=0,
    driver=Driver("run-b", "recorded-id", "s3://lake/recorded", host="node-7"),
    time="2026-01-02T03:04:05.678+00:00",
)
CHECKPOINT = Checkpoint(
    "s3://lake/mine", "my-id", planned=42, committed=41, ends={42: ('{"logOffset":9}',)}
)
DONE = DoneEpoch(42, EndOffsets.of(['{"logOffset":7}']))
UNDONE = tuple(
    EpochStamp("orders", n, 0, 9, "run", 1, "append", 250, 0, 1, 0, OWNER.time, 0, 26 + n)
    for n in (39, 40)
)


def refusal(
    decision: Decision, *, owner: Owner | None = OWNER, checkpoint: Checkpoint = CHECKPOINT
) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        refuse(
            decision,
            state=QueryState("orders", 77, owner, watermark=38, folded_version=60, done=DONE),
            uri="s3://lake/t.lance",
            checkpoint=checkpoint,
            watermark=Watermark(40, 77, None, missing=5, undone=UNDONE, undone_by=(70, 64)),
            held_token=8,
        )
    return caught.value


SAID = {
    Decision.FENCED: (
        FencedError,
        ["token 9", "active", "run-b", "node-7", "2026-01-02T03:04:05", "token 8"],
        ["nothing to do", "queryId of its own"],
    ),
    Decision.CHECKPOINT_FOREIGN: (
        CheckpointMismatchError,
        ["recorded-id", "s3://lake/recorded", "watermark 40", "s3://lake/mine", "id my-id"],
        ["checkpointLocation", "new queryId", "onCheckpointChange=newGeneration"],
    ),
    Decision.CHECKPOINT_STALE: (
        CheckpointMismatchError,
        ["epoch 40", "s3://lake/mine", "no epoch after 42"],
        ["newest copy", "new queryId", "onCheckpointChange=newGeneration"],
    ),
    Decision.DATASET_FOREIGN: (
        CheckpointMismatchError,
        ["s3://lake/mine", "my-id", "up to 41", "version 77"],
        ["uri and queryId", "new checkpointLocation", "onCheckpointChange=newGeneration"],
    ),
    Decision.HISTORY_GAP: (
        HistoryGapError,
        ["epoch 42", "5 of the versions", "after 60"],
        ["onHistoryGap=committed:42@60", "onHistoryGap=missing:42@60"],
    ),
    Decision.CHECKPOINT_CHANGED: (
        CheckpointMismatchError,
        ["epoch 42", "s3://lake/mine"],
        ["lance-stream check"],
    ),
    Decision.DATASET_RESTORED: (
        DatasetRestoredError,
        ["version 70", "version 64", "epochs 39 to 40", "500 rows"],
        ["with version 69: lance-stream resolve restore", "onRestore=accept:39-40"],
    ),
}
GOES_ON = set(Decision) - set(SAID)


@pytest.mark.parametrize("decision", list(SAID), ids=str)
def test_a_refusal_says_what_was_seen_and_what_to_type(decision: Decision) -> None:
    kind, seen, ways_out = SAID[decision]
    error = refusal(decision)
    assert type(error) is kind
    expected = ["'orders'", "s3://lake/t.lance", *seen, *ways_out]
    assert [words for words in expected if words not in str(error)] == []


@pytest.mark.parametrize("decision", sorted(GOES_ON), ids=str)
def test_a_decision_to_go_on_refuses_nothing(decision: Decision) -> None:
    refuse(
        decision,
        state=QueryState("orders", 1),
        uri="s3://lake/t.lance",
        checkpoint=CHECKPOINT,
        watermark=Watermark(-1, 1, None),
        held_token=None,
    )


def test_the_decisions_that_go_on_are_these_three() -> None:
    assert {each.value for each in GOES_ON} == {"FULL_COMMIT", "SKIP_REPLAY", "RECOVERY_TXN2_ONLY"}


def test_fenced_by_an_owner_record_that_is_gone_says_so() -> None:
    assert "no driver" in str(refusal(Decision.FENCED, owner=None))


def test_message_of_a_deleted_checkpoint_names_its_location_and_no_id() -> None:
    empty = Checkpoint("s3://lake/mine")
    message = str(refusal(Decision.CHECKPOINT_FOREIGN, checkpoint=empty))
    assert "s3://lake/mine has no " in message
    assert "id None" not in message


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("fail", OnHistoryGap()),
        ("committed:0@9", OnHistoryGap(0, True, 9)),
        ("missing:17@0", OnHistoryGap(17, False, 0)),
    ],
)
def test_an_answer_is_read(text: str, answer: OnHistoryGap) -> None:
    assert OnHistoryGap.parse(text) == answer
    assert str(answer) == text


@pytest.mark.parametrize(
    "text", ["", "FAIL", "committed", "missing:", "missing:x@1", "missing:1", "missing:1@2 "]
)
def test_an_answer_in_another_form_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        OnHistoryGap.parse(text)
    assert repr(text) in str(caught.value)
    assert "use 'fail', 'committed:<epoch>@<version>' or 'missing:<epoch>@<version>'" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("text", "answer"), [("fail", OnRestore()), ("accept:3-5", OnRestore(3, 5))]
)
def test_accepted_epochs_are_read(text: str, answer: OnRestore) -> None:
    assert OnRestore.parse(text) == answer
    assert OnRestore.parse(str(answer)) == answer


@pytest.mark.parametrize("text", ["", "accept", "accept:3", "accept:5-3", "accept:-1-3", b"fail"])
def test_accepted_epochs_in_another_form_are_refused_with_the_forms(text: object) -> None:
    with pytest.raises(SpecError, match="use 'fail' or 'accept:<first>-<last>'"):
        OnRestore.parse(text)


def test_a_loss_is_accepted_for_the_epochs_that_are_named_and_no_others() -> None:
    assert OnRestore(3, 5).covers((3, 5))
    assert not OnRestore(3, 5).covers((3, 6))
    assert not OnRestore(3, 5).covers((2, 4))
    assert not OnRestore().covers((0, 0))


def test_an_answer_is_for_the_epoch_and_the_fold_it_names_and_no_other() -> None:
    assert OnHistoryGap(17, after_version=60).names(17, 60)
    assert not OnHistoryGap(17, after_version=60).names(18, 60)
    assert not OnHistoryGap(17, after_version=60).names(17, 61), "a later gap"
    assert OnHistoryGap(17).names(17, 61), "an answer to the gap that was just read"
    assert not OnHistoryGap().names(17, 60)
