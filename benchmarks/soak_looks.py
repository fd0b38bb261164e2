"""Looks at many datasets, as a triggerer's poll and as the page make them; for `benchmarks.soak`.

Another process commits: what a writer holds must not count here.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.contestants.lance_table import lance_uri
from benchmarks.harness.memory import held

QUERY = "soak"
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})

Sample = dict[str, float]


def soak_looks(
    work: Path, looks: int, datasets: int, every: int, *, say: Callable[[Sample], None]
) -> list[Sample]:
    """Look so often, at one dataset after the other, each with a new epoch since its last look.

    A look is both a poll's and the page's. Returns samples after so many looks each.
    """
    places = [str(work / f"table-{number:03}") for number in range(datasets)]
    uris = [lance_uri(place) for place in places]
    with _writer(places) as commit:
        return asyncio.run(_looks(uris, looks, every, commit, say))


async def _looks(
    uris: list[str],
    looks: int,
    every: int,
    commit: Callable[[], None],
    say: Callable[[Sample], None],
) -> list[Sample]:
    from airflow_provider_lance.plugins.page.cache import ResultCache
    from airflow_provider_lance.plugins.page.queries import see_dataset, see_stream
    from airflow_provider_lance.plugins.page.registry import RegisteredDataset
    from airflow_provider_lance.triggers.poll import subscribe

    page = ResultCache(see_dataset, keep=0, patience=60)
    detail = ResultCache(
        lambda uri: see_stream(RegisteredDataset(uri, ""), QUERY), keep=0, patience=60
    )
    samples: list[Sample] = []
    began, done, epoch = time.monotonic(), 0, 0
    with ExitStack() as stack:
        polls = [
            stack.enter_context(subscribe(uri, QUERY, lance_conn_id=None, interval=0.01))
            for uri in uris
        ]
        while done < looks:
            commit()
            for uri, poll in zip(uris, polls, strict=True):
                snapshot = await poll.next()
                while snapshot.watermark is None or snapshot.watermark.epoch < epoch:
                    snapshot = await poll.next()
                (row,) = await page.at([RegisteredDataset(uri, "")])
                (one,) = await detail.at([uri])
                if row.error or one.error:
                    raise AssertionError(f"{uri}: {row.error or one.error}")
                done += 1
                if done % every == 0 or done == looks:
                    process = held()
                    sample = {
                        "done": done,
                        "seconds": round(time.monotonic() - began, 1),
                        "mib": process.mib,
                        "descriptors": process.descriptors,
                        "threads": process.threads,
                    }
                    samples.append(sample)
                    say(sample)
                if done == looks:
                    break
            epoch += 1
    return samples


@contextmanager
def _writer(places: list[str]) -> Iterator[Callable[[], None]]:
    """Start the process that commits; gives ``commit()``, one epoch to each dataset."""
    words = [sys.executable, "-m", "benchmarks.soak_looks", json.dumps(places)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        orders: Any = child.stdin
        answers: Any = child.stdout

        def commit() -> None:
            orders.write("commit\n")
            orders.flush()
            if answers.readline() != "done\n":
                raise AssertionError(f"the writer ended: {child.wait()}")

        try:
            yield commit
        finally:
            orders.close()


def write() -> None:
    """Commit an epoch to each dataset whenever asked, until the pipe is closed."""
    from benchmarks.contestants.lance_stream import LanceStream

    places = json.loads(sys.argv[1])
    tables = [LanceStream(place, ROWS.schema, query_id=QUERY) for place in places]
    for epoch, _ in enumerate(sys.stdin):
        for table in tables:
            table.commit(epoch, ROWS)
        print("done", flush=True)


if __name__ == "__main__":
    write()
