"""The library that holds one manifest back: what it holds, and when it lets go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.interposer import NoCompilerError, compile_interposer
from tests.support.processes import wait_for

LINK = "import os, sys; os.link(sys.argv[1], sys.argv[2], follow_symlinks=False)"
"""By `linkat`, as Lance does."""


def linking(library: str, sign: Path, source: Path, target: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"LD_PRELOAD": library, "CHAOS_SIGN": str(sign)}
    command = [sys.executable, "-c", LINK, str(source), str(target)]
    return subprocess.Popen(command, env=environment)


def test_one_manifest_is_held_on_order_until_it_may_go(tmp_path: Path) -> None:
    library, sign = compile_interposer(tmp_path), tmp_path / "life"
    versions = tmp_path / "table.lance" / "_versions"
    versions.mkdir(parents=True)
    source = versions / "1.manifest#1"
    source.touch()
    assert linking(library, sign, source, versions / "1.manifest").wait() == 0, "no order"
    sign.with_suffix(".hold").touch()
    assert linking(library, sign, source, tmp_path / "other").wait() == 0, "no manifest"
    with linking(library, sign, source, versions / "2.manifest") as process:
        wait_for("the link to be held", sign.with_suffix(".held").exists)
        assert not (versions / "2.manifest").exists()
        assert linking(library, sign, source, versions / "3.manifest").wait() == 0, "one only"
        assert process.poll() is None
        sign.with_suffix(".go").touch()
        assert process.wait() == 0
    assert (versions / "2.manifest").exists()


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match="apt-get install gcc libc6-dev"):
        compile_interposer(tmp_path)
