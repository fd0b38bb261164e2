"""Random histories of columns that are added: `python -m tests.evolution --runs 300 --seed 1`.

Exit status: 0 every value is where it must be; 1 some are not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.evolution.run import histories


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.evolution", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", type=int, default=1, help="the first one's seed (1)")
    arguments = parser.parse_args()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        tally = histories(arguments.runs, arguments.seed, Path(folder))
    for name, number in sorted(tally.seen.items()):
        print(f"{name:32}{number:>9,}")
    for seed, trace in tally.wrong.items():
        print(f"\nseed {seed}\n{trace}", file=sys.stderr)
    print(f"{tally.runs} histories, {len(tally.wrong)} wrong, {tally.seconds:.0f} s")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
