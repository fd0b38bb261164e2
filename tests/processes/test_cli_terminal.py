"""What fits a terminal: columns, sentences and trends; and what a shell completes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_provider_lance.diagnostics.formatting import sparkline
from tests.support.cli import Stream, typed
from tests.support.terminal import on_a_terminal

ARGCOMPLETE = (str(Path(sys.executable).with_name("register-python-argcomplete")),)
CLI = (sys.executable, "-m", "airflow_provider_lance.cli")


def lines(*words: str, columns: int) -> list[str]:
    said = on_a_terminal([*CLI, *words], {"COLUMNS": str(columns), "NO_COLOR": "1"})
    return re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).splitlines()


def test_epochs_on_80_columns_show_what_matters_and_wrap_nothing(stream: Stream) -> None:
    wide = typed("epochs", stream.uri).out.splitlines()
    assert "fragments" in wide[2]
    for columns in (80, 60):
        narrow = lines("epochs", stream.uri, columns=columns)
        heads, rows = narrow[2], [line for line in narrow if re.match(r" +\S*\d+ ", line)]
        assert len(rows) == 4, "a row is a line"
        assert all(len(line) <= columns for line in [heads, *rows])
        assert {"epoch", "committed", "rows"} <= {*heads.split()}
        assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", rows[0])
        [left_out] = [line for line in narrow if line.startswith("A wider terminal also shows: ")]
        assert "fragments" in left_out
    assert "in Spark's log" in lines("epochs", stream.uri, columns=80)[2]


def test_a_fleet_on_80_columns_has_a_line_for_each_stream(stream: Stream, tmp_path: Path) -> None:
    Stream(tmp_path, pid=os.getpid(), uri=stream.uri, name="a" * 60).step()
    open_query = lines("status", stream.uri, columns=80)
    assert len(open_query) == 4
    assert all(len(line) <= 80 for line in open_query)
    assert "…" in "".join(open_query)


def remember(stream: Stream, *epochs: dict[str, float]) -> None:
    """Let the driver's heartbeat remember epochs, ten seconds from each to the next."""
    [report] = Path(f"{stream.checkpoint}.reports").glob("*/heartbeat.json")
    now = datetime.now(UTC)
    ages = range(10 * (len(epochs) - 1), -1, -10)
    recent = [
        {"at": (now - timedelta(seconds=age)).isoformat(), **each}
        for age, each in zip(ages, epochs, strict=True)
    ]
    report.write_text(json.dumps(json.loads(report.read_text()) | {"recent": recent}))


def test_status_and_watch_show_the_trend_at_once(stream: Stream) -> None:
    behind = (9000, 6000, 3000)
    remember(
        stream,
        *({"rows": 100 * n, "batchMs": 500, "behind": each} for n, each in enumerate(behind, 1)),
    )
    trend = "▃▆█ 600 rows/s   █▆▃ 3,000 behind"
    assert f"trend      {trend}" in typed("status", stream.uri).out
    assert "outlook    caught up in about 10 s" in typed("status", stream.uri).out
    document = typed("status", stream.uri, "orders", "-o", "json").document
    assert document["caughtUpInSeconds"] == 10.0
    assert document["recentBehind"] == [9000.0, 6000.0, 3000.0]
    watched = on_a_terminal([*CLI, "watch", stream.uri, "--count", "1"], {"COLUMNS": "120"})
    assert trend in watched.decode()


def test_bars_begin_at_0_and_end_at_the_most() -> None:
    assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def complete(line: str) -> list[str]:
    """Return what bash offers at the end of a line, with the script that the page says to use."""
    words = line.split(" ")
    script = f"""
eval "$(register-python-argcomplete lance-stream)"
[[ $(complete -p lance-stream) == *_python_argcomplete* ]] || exit 1
COMP_LINE={line!r} COMP_POINT={len(line)} COMP_TYPE=9
COMP_WORDS=({" ".join(map(repr, words))}) COMP_CWORD={len(words) - 1}
_python_argcomplete lance-stream {words[-1]!r} {words[-2]!r}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [each.strip() for each in ran.stdout.splitlines()]


def test_bash_completes_commands_and_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cli.md").read_text()
    assert 'eval "$(register-python-argcomplete lance-stream)"' in page
    assert {"status", "stop"} == {*complete("lance-stream st")}
    assert {"gap", "files", "checkpoint"} <= {*complete("lance-stream resolve ")}
    assert complete("lance-stream check --fail-") == ["--fail-on"]
    assert {"warning", "error", "critical"} == {*complete("lance-stream check --fail-on ")}


def test_fish_gets_a_script(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*ARGCOMPLETE, "--shell", "fish", "lance-stream"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "complete --command lance-stream" in ran.stdout
