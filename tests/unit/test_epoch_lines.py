"""How often a stream's epochs are told."""

from __future__ import annotations

from typing import Any

from airflow_provider_lance.triggers.task_log import EpochLines


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(epoch: int, epochs: int, rows: int) -> dict[str, Any]:
    return {"sink": {"epoch": epoch, "epochs": epochs, "totalRows": rows, "version": epoch + 3}}


def test_the_first_epoch_is_told_at_once() -> None:
    line = EpochLines(Clock()).line(beat(7, 3, 30))
    assert line == "Epoch 7 committed. version=10 totalRows=30"


def test_epochs_that_are_rare_are_told_one_by_one() -> None:
    clock = Clock()
    lines = EpochLines(clock)
    for epoch in range(3):
        clock.now += 61
        assert lines.line(beat(epoch, epoch + 1, epoch)) is not None
        assert lines.line(beat(epoch, epoch + 1, epoch)) is None, "the same heartbeat"


def test_epochs_that_are_frequent_share_a_line_a_minute() -> None:
    clock = Clock()
    lines = EpochLines(clock)
    told = []
    for epoch in range(1000):
        clock.now += 3
        told.append(lines.line(beat(epoch, epoch + 1, 10 * (epoch + 1))))
    said = [line for line in told if line]
    assert len(said) == 50
    assert said[1] == (
        "20 epochs in 60 s: rows=200 rowsPerSecond=3.3. "
        "Epoch 20 committed. version=23 totalRows=210"
    )
    assert told[-1] is None
    assert lines.line(beat(999, 1000, 10_000), last=True) is not None


def test_a_heartbeat_without_an_epoch_is_no_line() -> None:
    lines = EpochLines(Clock())
    for heartbeat in ({}, {"sink": None}, {"sink": {"epoch": None}}, {"sink": {"epoch": "x"}}):
        assert lines.line(heartbeat, last=True) is None
