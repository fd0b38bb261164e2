"""A driver's exit status while a thread of the sink's own is still inside Lance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

_ENDS = """
import sys, threading, time
import lance
from airflow_provider_lance.spark import job
uri, name = sys.argv[1:]
def work():
    while True:
        lance.dataset(uri)
threading.Thread(target=work, daemon=True, name=name).start()
time.sleep(0.2)
sys.exit(job._without_abort(3))
"""


@pytest.mark.parametrize("name", ["lance-autocompact", "lance-autoindex"])
def test_the_exit_status_is_kept_while_a_thread_is_in_lance(tmp_path: Path, name: str) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [1]}), uri)
    words = [sys.executable, "-c", _ENDS, uri, name]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 3, ran.stderr
