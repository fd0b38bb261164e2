"""A commit paused inside Lance, after its conflict check and before its manifest's link.

A library between Lance and the file system holds the link back in a real Spark driver. Meanwhile
others take the version number, and a cleanup frees it: the link succeeds below the newest version.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.chaos.interposer import compile_interposer
from tests.support.processes import end, finish, python, wait_for
from tests.support.sparkstream import Stream, orders, spec, write_spec

ROWS = 10
HELD_SECONDS = 3.0
"""Longer than what a driver takes for a prompt answer; as long as a machine may be suspended."""


class Held:
    """A real driver of which one commit is held back; one file is one epoch."""

    def __init__(self, folder: Path) -> None:
        self.stream = Stream(None, folder)  # type: ignore[arg-type]
        self.stream.create()
        self.files = 0
        self.sign = folder / "sign"
        library = compile_interposer(folder)
        document = spec(self.stream, trigger="1 second")
        self.process = python(
            *("-m", "tests.support.killed_job"),
            *(str(write_spec(folder / "spec.json", document)), "never", "1"),
            environment={"LD_PRELOAD": library, "CHAOS_SIGN": str(self.sign)},
        )

    @property
    def uri(self) -> str:
        return self.stream.uri

    @property
    def version(self) -> int:
        return lance.dataset(self.uri).version

    def feed(self) -> None:
        self.stream.add(orders(self.files * ROWS, ROWS))
        self.files += 1

    def reach(self, epoch: int) -> None:
        def there() -> bool:
            return self.process.poll() is not None or self.watermark >= epoch

        wait_for(f"epoch {epoch}", there)

    @property
    def watermark(self) -> int:
        return exact_watermark(open_dataset(self.uri), "q").epoch

    def told(self, ending: str) -> Path:
        return self.sign.with_name(f"{self.sign.name}.{ending}")

    @contextmanager
    def paused(self, *, suspended: bool) -> Iterator[int]:
        """Hold the next epoch's commit back while the block runs; yield its version number."""
        number = self.version + 1
        self.told("hold").touch()
        self.feed()
        wait_for("the link to be held", self.told("held").exists)
        if suspended:
            os.killpg(self.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        yield number
        time.sleep(max(0.0, began + HELD_SECONDS - time.monotonic()))
        self.told("go").touch()
        if suspended:
            os.killpg(self.process.pid, signal.SIGCONT)

    def take_and_free(self, number: int) -> None:
        """Let others take a version number, and somebody remove everything old."""
        for count in range(3):
            lance.dataset(self.uri).update_config({"somebody's": str(count)})
        assert self.version == number + 2
        lance.dataset(self.uri).cleanup_old_versions(older_than=timedelta(0))
        assert not self.has(number)

    def has(self, number: int) -> bool:
        return number in [each["version"] for each in lance.dataset(self.uri).versions()]

    def end(self) -> str:
        request_stop(open_dataset(self.uri), "q")
        status, output = finish(self.process)
        assert status == 0, output
        return output


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    try:
        made.feed()
        made.feed()
        made.reach(1)
        yield made
    finally:
        end(made.process)


@pytest.mark.parametrize("suspended", [False, True])
def test_epoch_is_sent_again_when_it_landed_under_a_version_number_that_cleanup_freed(
    held: Held, suspended: bool
) -> None:
    with held.paused(suspended=suspended) as number:
        held.take_and_free(number)
        newest = held.version
    wait_for("the link", lambda: held.process.poll() is not None or held.has(number))
    assert lance.dataset(held.uri, version=number).count_rows() == 3 * ROWS
    assert number < newest
    held.feed()
    held.feed()
    held.reach(4)
    output = held.end()
    table = lance.dataset(held.uri).to_table()
    assert Counter(table["id"].to_pylist()) == Counter(range(5 * ROWS))
    assert f"epoch 2 landed as version {number}" in output
    found = check(open_dataset(held.uri), ["q"]).findings
    assert max(each.severity for each in found) < Severity.WARNING, found
    assert found[0].code is Code.HEALTHY


def test_slow_commit_is_not_sent_again_when_no_other_commit_overtook_it(held: Held) -> None:
    with held.paused(suspended=True) as number:
        pass
    held.feed()
    held.reach(3)
    assert "Sent again" not in held.end()
    assert held.has(number)
    table = lance.dataset(held.uri).to_table()
    assert Counter(table["id"].to_pylist()) == Counter(range(4 * ROWS))
