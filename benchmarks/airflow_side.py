"""E6: what the provider costs Airflow: imports, DAG parsing, a poke, and watchers by the thousand.

Everything runs in processes of its own, with an Airflow home of its own. Modules are imported after
`airflow.sdk` in a fresh interpreter, DAG files parsed as Airflow's DAG processor does. A thousand
watchers share one event loop, as in a triggerer, while streams commit to what they watch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_lance.provider_info import get_provider_info
from benchmarks.airflow_probe import QUERY
from benchmarks.contestants.lance_stream import LanceStream
from benchmarks.harness.bench import Bench
from benchmarks.harness.machine import ROOT
from benchmarks.harness.measure import median, percentile, summary
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA, rows
from benchmarks.harness.turns import by_turns

NAME = "E6"
TITLE = "What the provider costs Airflow"

BASE = "airflow.sdk"
PACKAGE = "airflow_provider_lance"
LIGHT = (f"{PACKAGE}.provider_info", f"{PACKAGE}.cli.airflow")
"""What Airflow imports in processes that need nothing of `airflow.sdk` for it."""
BESIDE = (f"{PACKAGE}.plugins.lance", f"{PACKAGE}.hooks.errors")
"""Public, and not in the provider's metadata."""
# For a quick run: each takes an interpreter that imports Airflow.
FEW_MODULES = ("operators.stream", "triggers.event")
WATCHERS, INTERVAL = 1000, 1.0
DATASETS = (1, 100)
LOOKS_LIMIT = 1.1
"""Looks that a dataset may cost in a poll's interval, however many watch it; a tenth for edges."""

EMPTY_DAG = "from airflow.sdk import DAG\n\nwith DAG('empty'):\n    pass\n"


def public_modules(info: Mapping[str, Any]) -> list[str]:
    """Return the modules that a provider's metadata names, sorted."""
    lists = (each for kind in ("operators", "sensors", "hooks", "triggers") for each in info[kind])
    named = {module for each in lists for module in each["python-modules"]}
    objects = [*info["extra-links"], *info["cli"]]
    objects += [each["hook-class-name"] for each in info["connection-types"]]
    objects += [each[word] for each in info["asset-uris"] for word in ("handler", "factory")]
    return sorted(named | {each.rpartition(".")[0] for each in objects})


class Probe:
    """Calls functions of :mod:`benchmarks.airflow_probe`, each in an interpreter of its own."""

    def __init__(self, work: Path) -> None:
        self._work = work
        home = work / "airflow"
        self._environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }

    def __call__(
        self, function: str, meanwhile: Callable[[], None] = lambda: None, **arguments: Any
    ) -> Any:
        """Call one and return what it returned.

        :param meanwhile: called again and again until the process has ended.
        """
        answer, log = self._work / "answer.json", self._work / "probe.log"
        code = "import sys; from benchmarks.airflow_probe import main; main(*sys.argv[1:])"
        words = [sys.executable, "-c", code, function, json.dumps(arguments), str(answer)]
        with log.open("w") as file:
            process = subprocess.Popen(
                words, cwd=ROOT, env=self._environment, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                while process.poll() is None:
                    meanwhile()
                    time.sleep(0.02)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            raise AssertionError(f"{function} failed: {log.read_text()[-2000:]}")
        return json.loads(answer.read_text())


def run(bench: Bench) -> Sheet:
    rounds = bench.scale.pick(quick=1, full=2)
    parses = bench.scale.pick(quick=1, full=9)
    dags = sorted((ROOT / "dags").glob("*.py"))[: bench.scale.pick(quick=3, full=None)]
    looks = bench.scale.pick(quick=20, full=100)
    seconds = bench.scale.pick(quick=2.0, full=12.0)
    modules = bench.scale.pick(
        quick=[*LIGHT, *(f"{PACKAGE}.{name}" for name in FEW_MODULES)],
        full=sorted({*public_modules(get_provider_info()), *LIGHT, *BESIDE}),
    )
    settings = {
        "modules": modules,
        "rounds": {"imports": rounds, "parses": parses, "looks": looks},
        "watchers": WATCHERS,
        "datasets": DATASETS,
        "poll_interval_seconds": INTERVAL,
        "seconds": seconds,
    }
    sheet = Sheet(NAME, TITLE, settings)
    probe = Probe(bench.work)
    with progress("Airflow", rounds * len(modules) + 2 + len(DATASETS)) as advance:
        _imports(sheet, probe, modules, rounds, advance)
        advance("parsing")
        _parses(sheet, probe, bench.work, dags, parses)
        advance("looks")
        _looks(sheet, probe, bench.work, looks)
        for datasets in DATASETS:
            advance(f"{WATCHERS:,} watchers, {datasets} datasets")
            _watchers(sheet, probe, bench.work / f"watched-{datasets}", datasets, seconds)
    return sheet


def _imports(
    sheet: Sheet,
    probe: Probe,
    modules: Sequence[str],
    rounds: int,
    advance: Callable[[str], None],
) -> None:
    """Note each module's import, and how many times that of the base it comes to."""

    def once(module: str, _: int) -> dict[str, float]:
        told: dict[str, float] = probe(
            "imports", module=module, base=None if module in LIGHT else BASE
        )
        return told

    found = by_turns({each: partial(once, each) for each in modules}, rounds, advance)
    bases = [told["base"] for each in found.values() for told in each if "base" in told]
    base = median(bases)
    sheet.add("import_p50", base, "ms", module=BASE)
    for module, told in found.items():
        alone = median([each["module"] for each in told])
        sheet.add("import_p50", alone, "ms", module=module, after="" if module in LIGHT else BASE)
        # Beside the base of the same process, so that the machine's mood drops out.
        together = [
            (each["module"] + each.get("base", 0)) / each.get("base", base) for each in told
        ]
        name = module.removeprefix(f"{PACKAGE}.")
        sheet.ratio("import_p50", of=name, to=BASE, value=median(together))


def _parses(sheet: Sheet, probe: Probe, work: Path, dags: Sequence[Path], rounds: int) -> None:
    """Note how long each of these DAGs takes to parse, beside an empty one."""
    empty = work / "empty.py"
    empty.write_text(EMPTY_DAG)
    files = [str(empty), *map(str, dags)]
    found: dict[str, list[float]] = probe("parse", files=files, rounds=rounds)
    none = median(found[str(empty)])
    for path, taken in found.items():
        name = Path(path).stem
        sheet.add("parse_p50", median(taken), "ms", file=name)
        if path != str(empty):
            sheet.ratio("parse_p50", of=name, to="empty DAG", value=median(taken) / none)


def _looks(sheet: Sheet, probe: Probe, work: Path, rounds: int) -> None:
    """Note a sensor's poke and a hook's reading beside the dataset's opening alone."""
    [stream] = _streams(work / "looked-at", 1)
    found: dict[str, list[float]] = probe("looks", uri=stream.uri, rounds=rounds)
    alone = median(found["lance.dataset"])
    for name, taken in found.items():
        sheet.add("look_p50", median(taken), "ms", look=name)
        if name != "lance.dataset":
            sheet.ratio("look_p50", of=name, to="lance.dataset", value=median(taken) / alone)


def _watchers(sheet: Sheet, probe: Probe, place: Path, datasets: int, seconds: float) -> None:
    """Note what so many watchers ask of the store, how late their loop is, what they hold."""
    streams = _streams(place, datasets)
    due = time.monotonic()

    def meanwhile() -> None:
        """Commit one epoch to every dataset once in each interval."""
        nonlocal due
        if time.monotonic() >= due:
            due += INTERVAL
            for stream in streams:
                stream.epoch(rows(0, 10))

    told = probe(
        "watchers",
        meanwhile,
        uris=[stream.uri for stream in streams],
        count=WATCHERS,
        interval=INTERVAL,
        seconds=seconds,
    )
    asked, intervals = told["asked"], told["seconds"] / INTERVAL
    looks = (asked.get("open", 0) + asked.get("latest", 0)) / intervals
    labels = {"watchers": WATCHERS, "datasets": datasets}
    each = f"{WATCHERS:,} watchers"
    sheet.ratio("looks", of=each, to="a look per dataset", value=looks / datasets, **labels)
    sheet.ratio("looks", of=each, to="a look per watcher", value=looks / WATCHERS, **labels)
    sheet.add("looks_per_interval", looks, "looks", **labels)
    read = asked.get("properties", 0) / intervals
    sheet.add("transactions_per_interval", read, "transactions", **labels)
    for state in ("idle", "busy"):
        lag = summary(told[state])
        sheet.add("loop_lag_p50", lag["p50"], "ms", loop=state, **labels)
        sheet.add("loop_lag_p99", percentile(told[state], 0.99), "ms", loop=state, **labels)
    sheet.add("memory_per_watcher", told["bytes"] / WATCHERS / 1024, "KiB", **labels)
    where = f"{each} on {datasets} dataset{'s' * (datasets > 1)}"
    sheet.claim(f"watchers that ended by an error, {where}", value=told["lost"], limit=0)
    sheet.claim(
        f"looks per dataset and interval, {where}",
        value=looks / datasets,
        limit=LOOKS_LIMIT,
    )


def _streams(place: Path, count: int) -> list[LanceStream]:
    """Make datasets with a live stream each, which has committed two epochs."""
    streams = []
    for number in range(count):
        stream = LanceStream(str(place / f"{number}"), SCHEMA, query_id=QUERY)
        stream.epoch(rows(0, 10))
        stream.epoch(rows(0, 10))
        streams.append(stream)
    return streams
