"""A short run of the laboratory of random troubles."""

from __future__ import annotations

from tests.desk.histories import histories


def test_no_trouble_is_called_healthy() -> None:
    """What is said is so. Advice that does not end its trouble is counted by the laboratory."""
    tally = histories(60, seed=5)
    assert tally.happened["healthy at the end"] > 30
    wrong = [why for why in tally.wrong.values() if why.startswith("AssertionError: healthy")]
    assert not wrong, wrong
