"""The soak, tiny: every figure is there, and what it runs ends in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.memory import Held, held, held_by_children
from benchmarks.soak import grown

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def soak(*words: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    "words", [("--mode", "append", "--on-executors"), ("--mode", "upsert", "--compact-every", "3")]
)
def test_soak_of_a_driver_samples_all_its_processes(words: tuple[str, ...]) -> None:
    sizes = ("--epochs", "8", "--every", "4", "--after", "4", "--heap", "512m")
    told = soak(*sizes, *words)
    samples = told["samples"]
    assert samples[-1]["done"] >= 8
    for sample in samples:
        assert sample["driver_mib"] > 50
        assert sample["jvm_mib"] > 512
        assert 10 < sample["jvm_heap_mib"] < 512
        assert min(sample["driver_threads"], sample["jvm_threads"]) >= 2
    assert any(sample["workers"] for sample in samples)
    assert told["grown"]["driver_mib"] == grown(samples, 4)["driver_mib"]


def test_soak_of_looks_sees_each_new_epoch() -> None:
    told = soak("--looks", "9", "--datasets", "3", "--every", "3", "--after", "3")
    assert [sample["done"] for sample in told["samples"]] == [3, 6, 9]
    assert told["grown"]["done"] == 6


def test_growth_counts_from_the_first_sample_that_is_late_enough() -> None:
    samples = [{"done": 1, "mib": 5.0}, {"done": 500, "mib": 90.0}, {"done": 900, "mib": 95.55}]
    assert grown(samples, 400) == {"done": 400, "mib": 5.5}
    assert grown(samples, 5000) == {"done": 899, "mib": 90.5}


def test_what_a_process_and_its_children_hold_is_told() -> None:
    words = [sys.executable, "-c", "held = b'x' * 2**25; print(flush=True); input()"]
    before = held()
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone = held(child.pid)
        assert alone.mib > 32
        assert alone.processes == 1
        assert held_by_children(child.pid) == Held()
        assert held().descriptors > before.descriptors
        child.communicate(b"\n")
    assert held(child.pid) == Held()
