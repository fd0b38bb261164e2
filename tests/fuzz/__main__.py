"""Fuzz the readers: `python -m tests.fuzz --inputs 100000 --seed 1 [--only NAME]`.

Exit status: 0 every input was accepted with the right meaning or refused by name, 1 some were not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import fuzz
from tests.fuzz.subjects import subjects


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--seed", type=int, default=1, help="decides them all (1)")
    parser.add_argument("--only", help="the name of one kind")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of summaries and notes that cannot be read, as they should
    with tempfile.TemporaryDirectory() as folder:
        kinds = [each for each in subjects(Path(folder)) if arguments.only in (None, each.name)]
        tally = fuzz(kinds, arguments.inputs, arguments.seed)
    print(f"{'kind':28}{'inputs':>9}{'accepted':>10}{'refused':>9}{'wrong':>7}{'seconds':>9}")
    for kind in kinds:
        numbers = tally.accepted[kind.name], tally.refused[kind.name], tally.raw[kind.name]
        cells = f"{sum(numbers):>9}{numbers[0]:>10}{numbers[1]:>9}{numbers[2]:>7}"
        print(f"{kind.name:28}{cells}{tally.seconds[kind.name]:>9.1f}")
    wrong = sum(tally.raw.values())
    print(f"{tally.inputs} inputs of seed {arguments.seed}: {wrong} wrong")
    for (name, where), (made, trace) in tally.wrong.items():
        print(f"\n{name}: {where}\n  input: {repr_of(made)}\n{trace}", file=sys.stderr)
    return 1 if wrong else 0


def repr_of(made: object) -> str:
    """Return an input as far as it can be shown."""
    try:
        return repr(made)[:600]
    except Exception as error:
        return f"{type(made).__name__} ({error})"


sys.exit(main())
