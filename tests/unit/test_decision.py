from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_lance.protocol.decision import Decision, DecisionInput, decide

# A driver that has claimed token 4 and stands after epoch 7; epoch 8 is the one to come.
OWNED = DecisionInput(
    checkpoint_id="c",
    recorded_checkpoint_id="c",
    planned=8,
    planned_now=8,
    committed=7,
    held_token=4,
    owner_token=4,
    config_watermark=5,
    exact_watermark=7,
)
FIRST = DecisionInput(
    checkpoint_id=None,
    recorded_checkpoint_id=None,
    planned=-1,
    planned_now=-1,
    committed=-1,
    held_token=None,
    owner_token=None,
    config_watermark=-1,
    exact_watermark=-1,
)

TABLE = [
    ("the next epoch", OWNED, 8, Decision.FULL_COMMIT),
    ("a gap in the numbers is normal", OWNED, 12, Decision.FULL_COMMIT),
    ("the very first epoch", FIRST, 0, Decision.FULL_COMMIT),
    ("folded into the config", OWNED, 5, Decision.SKIP_REPLAY),
    ("an older one", OWNED, 0, Decision.SKIP_REPLAY),
    ("in history, config behind", OWNED, 6, Decision.RECOVERY_TXN2_ONLY),
    ("the newest in history", OWNED, 7, Decision.RECOVERY_TXN2_ONLY),
    ("another token", replace(OWNED, owner_token=5), 8, Decision.FENCED),
    ("the owner record is gone", replace(OWNED, owner_token=None), 8, Decision.DATASET_FOREIGN),
    ("another token, replayed epoch", replace(OWNED, owner_token=5), 3, Decision.FENCED),
    ("not claimed yet: any owner", replace(OWNED, held_token=None), 8, Decision.FULL_COMMIT),
    (
        "checkpoint deleted",
        replace(OWNED, checkpoint_id=None, planned=-1, planned_now=-1, committed=-1),
        0,
        Decision.CHECKPOINT_FOREIGN,
    ),
    ("another checkpoint", replace(OWNED, checkpoint_id="d"), 8, Decision.CHECKPOINT_FOREIGN),
    (
        "an old copy of the checkpoint",
        replace(OWNED, planned=3, planned_now=3, committed=3),
        4,
        Decision.CHECKPOINT_STALE,
    ),
    (
        "an old copy of the checkpoint, by what the driver reported",
        replace(OWNED, planned=7, planned_now=7, missing=2, missing_above=2, reported=8),
        8,
        Decision.FULL_COMMIT,
    ),
    (
        "the same before any epoch is planned",
        replace(OWNED, planned=7, planned_now=7, missing=2, missing_above=2, reported=8),
        -1,
        Decision.CHECKPOINT_STALE,
    ),
    (
        "another driver went on with the checkpoint meanwhile",
        replace(OWNED, planned=3, planned_now=7, committed=2),
        3,
        Decision.SKIP_REPLAY,
    ),
    (
        "the dataset was recreated",
        replace(FIRST, checkpoint_id="c", planned=8, planned_now=8, committed=7),
        8,
        Decision.DATASET_FOREIGN,
    ),
    (
        "planned, never done, nothing in the dataset: killed before its first commit",
        replace(FIRST, checkpoint_id="c", planned=0, planned_now=0),
        0,
        Decision.FULL_COMMIT,
    ),
    (
        "history gap, epoch 8 in doubt",
        replace(OWNED, missing=1, missing_above=1),
        8,
        Decision.HISTORY_GAP,
    ),
    (
        "history gap, epoch 8 seen in what is left, and in Spark's log",
        replace(OWNED, missing=1, exact_watermark=8, committed=8),
        8,
        Decision.RECOVERY_TXN2_ONLY,
    ),
    (
        "history gap, epoch 8 seen in what is left, and Spark was not told",
        replace(OWNED, missing=1, exact_watermark=8),
        8,
        Decision.HISTORY_GAP,
    ),
    (
        "history gap, epoch 8 done and maybe undone",
        replace(OWNED, missing=1, committed=8),
        9,
        Decision.HISTORY_GAP,
    ),
    (
        "history gap, epoch 8 known as done",
        replace(OWNED, missing=1, missing_above=1, committed=8, known_done=8),
        9,
        Decision.FULL_COMMIT,
    ),
    ("a version restored over epochs", replace(OWNED, lost=True), 8, Decision.DATASET_RESTORED),
    ("other end offsets", replace(OWNED, changed=True), 8, Decision.CHECKPOINT_CHANGED),
]


@pytest.mark.parametrize(
    ("seen", "epoch_id", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_decision_table(seen: DecisionInput, epoch_id: int, expected: Decision) -> None:
    assert decide(seen, epoch_id) is expected


def test_every_decision_is_in_the_table() -> None:
    assert {row[3] for row in TABLE} == set(Decision)
