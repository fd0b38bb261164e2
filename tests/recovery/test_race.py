"""Three processes steal one query from each other beside a compaction loop."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import lance
import pytest

from tests.support.contender import CHECKPOINT_ID
from tests.support.drivers import epoch_rows, lance_world
from tests.support.processes import end, finish, python

EPOCHS = 150


def race(folder: Path, *, barrier: str) -> tuple[Counter[int], int, int]:
    """Run the race to its end; return the ids found, and how often a driver claimed or failed."""
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True)
    (folder / "checkpoint/metadata").write_text(json.dumps({"id": CHECKPOINT_ID}))
    world = lance_world(str(folder / "t.lance"))
    contenders = [
        python("-m", "tests.support.contender", str(folder), str(EPOCHS), barrier, str(seed))
        for seed in range(3)
    ]
    try:
        compactions = 0
        while any(contender.poll() is None for contender in contenders):
            world.compact()
            compactions += 1
        ended = [finish(contender) for contender in contenders]
    finally:
        for contender in contenders:
            end(contender)
    assert [status for status, _ in ended] == [0, 0, 0], ended
    assert compactions > 3
    claims = fenced = 0
    for _, output in ended:
        found = re.search(r"claims=(\d+) fenced=(\d+)", output)
        assert found, output
        claims, fenced = claims + int(found[1]), fenced + int(found[2])
        # With the barrier on, the only way to lose is to be told so by name.
        others = set(re.findall(r"^(\w+Error):", output, re.MULTILINE)) - {"FencedError"}
        assert not others, output
    table = lance.dataset(str(folder / "t.lance")).to_table()
    return Counter(table.column("id").to_pylist()), claims, fenced


def test_drivers_that_steal_a_query_from_each_other_write_each_epoch_once(
    tmp_path: Path,
) -> None:
    ids, claims, fenced = race(tmp_path, barrier="on")
    assert ids == Counter(row["id"] for n in range(EPOCHS) for row in epoch_rows(n))
    assert claims > 10
    assert fenced > 3, "they really met"


@pytest.mark.parametrize("barrier", ["off"])
def test_race_doubles_rows_when_the_barrier_is_off(tmp_path: Path, barrier: str) -> None:
    ids, _, _ = race(tmp_path, barrier=barrier)
    assert set(ids) == {row["id"] for n in range(EPOCHS) for row in epoch_rows(n)}
    assert sum(count - 1 for count in ids.values()) > 0, "the race caught nothing: no control"
