"""Random histories of the Lance source: `python -m tests.histories --histories 5000 --seed 1`.

Exit status: 0 every query read what each version changed, once; 1 some did not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.histories.run import histories


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=5_000, help="how many (5,000)")
    parser.add_argument("--seed", type=int, default=1, help="decides them all (1)")
    arguments = parser.parse_args()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        tally = histories(arguments.histories, arguments.seed, Path(folder))
    for name, number in sorted(tally.operations.items()):
        print(f"{name:24}{number:>9} versions")
    for name, trace in tally.wrong.items():
        print(f"\nhistory {name}\n{trace}", file=sys.stderr)
    print(
        f"{tally.histories} histories of seed {arguments.seed}: {tally.versions} versions, "
        f"{tally.epochs} epochs, {tally.replays} of them repeated, {tally.rows} rows, "
        f"{tally.refused} queries refused by name, {len(tally.wrong)} wrong, "
        f"{tally.seconds:.0f} s"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
