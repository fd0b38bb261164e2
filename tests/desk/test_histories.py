"""A short run of the laboratory of random troubles."""

from __future__ import annotations

import pytest

from tests.desk.histories import histories


def test_no_trouble_is_called_healthy() -> None:
    """What is said is so. Advice that does not end its trouble is counted by the laboratory."""
    tally = histories(60, seed=5)
    assert tally.happened["healthy at the end"] > 30
    wrong = [why for why in tally.wrong.values() if why.startswith("AssertionError: healthy")]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("seed", "number"),
    [(2, 7), (2, 59), (7, 38), (7, 43), (7, 47), (7, 124), (7, 159), (7, 204), (7, 245), (7, 276)],
)
def test_advice_that_once_failed_ends_its_trouble(seed: int, number: int) -> None:
    assert histories(1, seed, number).wrong == {}
