"""Stateful queries, killed and compared: `python -m tests.stateful --seeds 3 [QUERY ...]`.

Every query runs with every state store and seed. Exit status: 0 all rows were right; 1 some were
not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.conftest import local_session
from tests.stateful.queries import QUERIES
from tests.stateful.run import STORES, killed_and_compared


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.stateful", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"of {', '.join(QUERIES)}")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds (1)")
    parser.add_argument("--seed", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--store", action="append", choices=STORES, help="all of them by default")
    arguments = parser.parse_args()

    spark, wrong, ran, began = local_session(), 0, 0, time.monotonic()
    spark.sparkContext.setLogLevel("OFF")  # each kill is an error
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for name in arguments.queries or QUERIES:
            for store in arguments.store or STORES:
                if QUERIES[name].rocksdb_only and store == "hdfs":
                    continue
                ran += 1
                start = time.monotonic()
                try:
                    with tempfile.TemporaryDirectory(dir=memory) as folder:
                        seen = killed_and_compared(spark, Path(folder), name, store, seed)
                    said = f"{seen.rows} rows, killed at {' and '.join(seen.kills)}"
                except Exception as error:
                    wrong += 1
                    said = f"WRONG: {str(error)[:1500]}"
                    traceback.print_exc()
                print(
                    f"{name:26}{store:12}seed {seed}  {said}  {time.monotonic() - start:.1f} s",
                    flush=True,
                )
    print(f"{ran} runs, {2 * ran} kills, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
