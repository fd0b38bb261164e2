"""The laboratory of Spark's log: `python -m tests.log_races --races 300 --seed 1`.

Spark looks whether an entry of its log is there and then renames it into place. A library holds one
driver back between the two, while its successor writes the same entry. Then the driver goes on and
replaces it, or is killed. The next start must refuse each replaced entry that Spark would go on
from; after what the check says to type, no row is lost or doubled.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from airflow_provider_lance.spark.note_taker import NoteTaker
from tests.chaos.interposer import compile_interposer
from tests.log_races.driver import DEFAULT, LAUNCHED, session
from tests.log_races.race import Case, Rival, race

CASES = [
    Case(*place, before, end, further, kill)
    for place, before, end, further, kill in itertools.product(
        (
            ("rate", "offsets"),
            ("rate", "commits"),
            ("gaps", "offsets"),
            ("files", "offsets"),
            ("files", "sources/0"),
            ("files", "sources/0"),
        ),
        ("released", "left"),
        ("released", "left", "crashed"),
        (0, 1, 2),
        (False, False, False, True),
    )
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.log_races", description=__doc__)
    parser.add_argument("--races", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--default", action="store_true", help="with Spark's default manager")
    parser.add_argument("--without-notes", action="store_true", help="the control: some go wrong")
    given = parser.parse_args()
    if given.without_notes:
        NoteTaker.note = lambda *_: True  # type: ignore[method-assign]
    return laboratory(given.races, given.seed, default=given.default)


def laboratory(races: int, seed: int, *, default: bool = False) -> int:
    """Run races of random cases; return how many ended wrong."""
    chance, began, seen = random.Random(seed), time.monotonic(), Counter[str]()
    home = Path(tempfile.mkdtemp(prefix="log-races"))
    library = compile_interposer(home)
    writes = DEFAULT if default else LAUNCHED
    spark = session()
    rival = Rival(library, writes)
    try:
        for number in range(races):
            case, root = chance.choice(CASES), home / str(number)
            outcome = race(spark, rival, root, case)
            seen["replaced"] += outcome.replaced
            seen["refused"] += outcome.refused
            seen["wrong"] += bool(outcome.wrong)
            if outcome.wrong:
                print(f"race {number} of seed {seed}: {case}: {outcome.wrong}", flush=True)
            if case.kill:
                rival = Rival(library, writes)
            shutil.rmtree(root)
    finally:
        rival.kill()
        shutil.rmtree(home, ignore_errors=True)
    print(
        f"{races} races of seed {seed}: {seen['replaced']} entries replaced, {seen['refused']} "
        f"starts refused, {seen['wrong']} wrong in {time.monotonic() - began:.0f} s"
    )
    return seen["wrong"]


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
