"""One of several drivers that fight for a query: `contender.py FOLDER EPOCHS BARRIER SEED [STORE]`.

It does what Spark does around the sink: plans an epoch in `offsets/`, commits it through the
protocol, logs it in `commits/`. It steals the query again and again and never releases it. STORE is
JSON with the dataset's URI and storage options, if it is not in the folder.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from tests.support.drivers import epoch_rows, lance_world

QUERY, CHECKPOINT_ID = "contested", "shared-checkpoint"


def main(folder: str, epochs: str, barrier: str, seed: str, store: str = "{}") -> int:
    dice = random.Random(int(seed))
    place = {"uri": f"{folder}/t.lance", "storage": None} | json.loads(store)
    world = lance_world(place["uri"], storage=place["storage"])
    files = open_files(f"{folder}/checkpoint")
    policy = CommitPolicy(barrier=barrier == "on")

    def look() -> Checkpoint:
        return read_checkpoint(f"{folder}/checkpoint", files)

    claims = fenced = 0
    while (seen := look()).committed < int(epochs) - 1:
        committer = DriverSession(world.open(), QUERY, seen, policy, look=look)
        try:
            committer.prepare()
            committer.identify(Driver(f"run-{seed}", CHECKPOINT_ID, "/checkpoint", pid=os.getpid()))
            first = seen.in_flight if seen.in_flight is not None else seen.committed + 1
            for epoch_id in range(first, min(first + dice.randint(1, 6), int(epochs))):
                Path(folder, "checkpoint/offsets", str(epoch_id)).write_text("v1\n{}\n-")
                plan = committer.begin(epoch_id)
                if plan.decision is Decision.FULL_COMMIT:
                    rows = epoch_rows(epoch_id)
                    fragments = world.fragments(plan.port, rows)
                    time.sleep(dice.random() * 0.02)
                    plan.commit(
                        Epoch(epoch_id, OutputMode.APPEND, fragments, len(rows), 0, utc_now())
                    )
                Path(folder, "checkpoint/commits", str(epoch_id)).write_text("v1\n{}")
            claims += 1
        except LanceStreamError as error:
            fenced += 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    print(f"claims={claims} fenced={fenced}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
