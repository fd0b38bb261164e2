"""What `lance-stream status` takes for a fleet: `python -m benchmarks.fleet`.

Datasets with one live stream each, below one folder. The command is run on all of them, and on all
of them while some of their stores hang. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.status import build

_HANGS = """
import sys, time
from airflow_provider_lance.cli import target
opened = target.open_dataset
def slow(uri, *options, **named):
    if any(uri.startswith(each) for each in {hanging!r}):
        time.sleep(600)
    return opened(uri, *options, **named)
target.open_dataset = slow
from airflow_provider_lance.cli.main import main
sys.argv = ["lance-stream", *sys.argv[1:]]
sys.exit(main())
"""


def timed(words: list[str], expected: int) -> float:
    """Return the seconds of one run."""
    began = time.perf_counter()
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if ran.returncode != expected:
        raise SystemExit(f"ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--versions", type=int, default=100)
    parser.add_argument("--hanging", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        first = folder / "0"
        first.mkdir()
        uris = [build(first, arguments.versions, 80)]
        for number in range(1, arguments.streams):
            other = folder / str(number)
            shutil.copytree(first / "orders.lance", other / "orders.lance")
            uris.append(str(other / "orders.lance"))
        cli = ["-m", "airflow_provider_lance.cli"]
        seconds = [timed([*cli, "status", *uris], 0) for _ in range(arguments.repeats)]
        limit = ["--timeout", str(arguments.timeout)]
        hanging = uris[: arguments.hanging]
        slow = timed(["-c", _HANGS.format(hanging=hanging), "status", *uris, *limit], 3)
    finally:
        shutil.rmtree(folder)
    print(
        json.dumps(
            {
                "streams": len(uris),
                "status_seconds": [round(each, 2) for each in seconds],
                "hanging": len(hanging),
                "timeout_seconds": arguments.timeout,
                "status_seconds_while_some_hang": round(slow, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
