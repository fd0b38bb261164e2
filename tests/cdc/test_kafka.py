from __future__ import annotations

from pathlib import Path

import pytest

from tests.cdc.kafka import laboratory


@pytest.mark.slow
@pytest.mark.parametrize("scd", [1, 2])
def test_a_table_from_kafka_equals_a_plain_replay_although_drivers_are_killed(
    tmp_path: Path, scd: int
) -> None:
    print(laboratory(tmp_path, count=2_000, keys=200, kills=1, scd=scd, seed=1))
