"""What all commands share: exit statuses, errors, where output goes, and what may be in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.cli.command_spec import seconds
from airflow_provider_lance.cli.commands import COMMANDS
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from tests.support.cli import Stream, python, typed, write_config
from tests.support.maintenance import make
from tests.support.terminal import on_a_terminal

CLI = ("-m", "airflow_provider_lance.cli")
EVIL = "x[bold red]y[/]\x1b]0;owned\x07\u202e\r\nz"


def test_help_names_every_command_and_the_exit_statuses() -> None:
    ran = typed("--help")
    assert ran.status == 0
    for command in COMMANDS:
        assert re.search(rf"^ +{command.name}\s", ran.out, re.MULTILINE)
        assert typed(command.name, "--help").status == 0
    assert "0 healthy" in ran.out


def test_the_page_names_every_command_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cli.md").read_text()
    for command in (each for group in COMMANDS for each in group.commands or (group,)):
        assert f"{command.name} " in page
        for argument in command.arguments:
            assert all(f in page for f in argument.flags if f.startswith("--")), argument.flags


def test_the_version() -> None:
    assert re.fullmatch(r"lance-stream \d+\.\d+.*\n", typed("--version").out)


@pytest.mark.parametrize("words", [(), ("nonsense",), ("status",), ("status", "/x", "--nope")])
def test_wrong_usage(words: tuple[str, ...]) -> None:
    ran = typed(*words)
    assert (ran.status, ran.out) == (2, "")
    assert "lance-stream" in ran.err


def test_an_unknown_dataset(tmp_path: Path) -> None:
    ran = typed("status", tmp_path / "none.lance")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert f"{tmp_path}/none.lance" in ran.err
    assert "Traceback" not in ran.err
    traced = typed("status", tmp_path / "none.lance", "--debug").err
    assert "Traceback" in traced
    assert "DatasetNotFoundError" in traced


def test_an_unknown_query_is_told_which_there_are(stream: Stream) -> None:
    ran = typed("status", stream.uri, "ordres")
    assert (ran.status, ran.out) == (2, "")
    assert "'ordres'" in ran.err
    assert "it has 'orders'" in ran.err


def test_a_dataset_that_no_query_has_written(tmp_path: Path) -> None:
    ran = typed("status", make(tmp_path, 1))
    assert (ran.status, ran.out) == (2, "")
    assert "no streaming query" in ran.err


def test_of_several_queries_one_must_be_named(stream: Stream, tmp_path: Path) -> None:
    Stream(tmp_path, pid=os.getpid(), uri=stream.uri, name="other").step()
    ran = typed("epochs", stream.uri)
    assert ran.status == 2
    assert "'orders', 'other'" in ran.err
    assert typed("epochs", stream.uri, "other").status == 0
    both = typed("status", stream.uri, "-v")
    assert both.out.index("orders: running") < both.out.index("other: running")
    named = [
        each["queryId"] for each in typed("status", stream.uri, "-o", "json").document["statuses"]
    ]
    assert named == ["orders", "other"]


def test_a_store_that_is_away_is_no_verdict(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    away = {
        "endpoint": "http://127.0.0.1:9",
        "allow_http": True,
        "region": "x",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "s3cr3t-of-the-store",
    }
    options.write_text(json.dumps(away))
    ran = typed("status", "s3://bucket/t.lance", "--storage-options-file", options)
    assert (ran.status, ran.out) == (3, "")
    said = ran.err.splitlines()[-1]
    assert said.startswith("error: cannot read s3://bucket/t.lance: nothing listens at http")
    assert "s3cr3t" not in ran.err


@pytest.mark.parametrize(
    "option",
    [
        "aws_secret_access_key=abc",
        "AWS_SESSION_TOKEN=abc",
        "azure_storage_sas_key=abc",
        "google_service_account=abc",
        "password=abc",
        "endpoint=https://me:abc@host",
    ],
)
def test_no_secret_on_a_command_line(option: str) -> None:
    ran = typed("status", "s3://bucket/t.lance", "--storage-option", option)
    assert ran.status == 2
    assert repr(option.partition("=")[0]) in ran.err
    assert "--storage-options-file" in ran.err
    assert "abc" not in ran.err


@pytest.mark.parametrize("content", ["{", "[]", '{"a": {"b": 1}}', None])
def test_a_file_of_options_that_cannot_be_read_is_not_quoted(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "options.json"
    if content:
        path.write_text(content)
    ran = typed("status", "/x", "--storage-options-file", path)
    assert ran.status == 2
    assert ran.err.startswith(f"error: --storage-options-file {path}: ")


def test_options_that_are_no_secret_reach_the_store_and_the_commands(stream: Stream) -> None:
    option = ("--storage-option", "region=eu-central-1")
    ran = typed("stop", stream.uri, *option)
    assert f"lance-stream stop {stream.uri} orders --yes {' '.join(option)}" in ran.out


def test_a_relative_path_is_that_of_the_working_directory(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(stream.uri).parent)
    document = typed("status", "orders.lance", "orders", "-o", "json").document
    assert document["uri"] == stream.uri


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("12h", 43_200), ("7d", 604_800)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("words", [("--stall", "soon"), ("--interval", "-1"), ("--count", "1.5")])
def test_numbers_that_are_none(words: tuple[str, str]) -> None:
    ran = typed("watch", "/x", *words)
    assert ran.status == 2
    assert f"argument {words[0]}" in ran.err


def test_what_others_wrote_is_shown_as_text(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    port = open_dataset(uri)
    port.commit(Configure({f"spark.lance.streaming.lastEpoch.{EVIL}": "3"}))
    for words in (("status", uri), ("epochs", uri), ("check", uri), ("status", uri, "nope")):
        ran = typed(*words)
        said = ran.out + ran.err
        assert "x[bold red]y[/]" in said, "markup is text"
        assert r"\x1b]0;owned\x07\u202e\r\nz" in said, "what steers a terminal is spelled out"
        assert not any(not each.isprintable() and each != "\n" for each in said)
    ran = typed("status", uri, "--query", EVIL, "--output", "json")
    assert ran.document["queryId"] == EVIL
    assert ran.out.isascii()


def test_one_json_document_on_stdout_and_nothing_else(stream: Stream) -> None:
    for words in (
        ("status", stream.uri),
        ("status", stream.uri, "orders"),
        ("epochs", stream.uri),
        ("check", stream.uri),
        ("stop", stream.uri),
        ("optimize", stream.uri),
        ("cleanup", stream.uri, "--dry-run"),
        ("doctor",),
    ):
        ran = typed(*words, "-o", "json")
        assert ran.document, words


def test_a_name_that_the_terminal_has_no_letters_for(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    open_dataset(uri).commit(Configure({"spark.lance.streaming.lastEpoch.größe": "3"}))
    ran = python(*CLI, "status", uri, env={"PYTHONIOENCODING": "ascii"})
    assert r"gr\xf6\xdfe" in ran.out
    assert "error" not in ran.err


def test_colours_are_for_terminals(stream: Stream) -> None:
    assert "\x1b[" not in typed("status", stream.uri).out
    command = [sys.executable, *CLI, "status", stream.uri]
    coloured = on_a_terminal(command, {"TERM": "xterm-256color"})
    assert b"\x1b[32m" in coloured
    assert b"\x1b[32m" not in on_a_terminal(command, {"TERM": "xterm-256color", "NO_COLOR": "1"})


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(("command", "healthy"), [("status", 0), ("status", 1), ("watch", 1)])
def test_a_reader_that_has_seen_enough_changes_no_verdict(
    stream: Stream, command: str, healthy: int, form: str
) -> None:
    if not healthy:
        write_config(stream.uri, lastEpoch="99")  # which no version proves
    words = [command, stream.uri, "--output", form]
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, *CLI, *words], stdout=write, stderr=subprocess.PIPE
    ) as process:
        os.close(write)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == (0 if healthy else 1)


def test_without_airflow_everything_but_connections_works(stream: Stream) -> None:
    code = f"""
import sys
class NoAirflow:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, NoAirflow())
from airflow_provider_lance.cli.main import main
uri = {stream.uri!r}
print(main(["status", uri]))
print(main(["check", uri, "--no-orphans"]))
print(main(["epochs", uri]), main(["optimize", uri, "--dry-run"]))
print(main(["doctor", uri, "--write-probe"]))
print(main(["status", uri, "--conn-id", "lake"]))
print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"airflow", "pyspark"}}))
"""
    # Spark's own client is not Airflow: the doctor looks for it on the PATH.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = python("-c", code, env={"PATH": path})
    assert ran.status == 0, ran.err
    assert [line for line in ran.out.splitlines() if re.fullmatch(r"[\d ]+|\[.*\]", line)] == [
        "0",
        "0",
        "0 0",
        "0",
        "2",
        "[]",
    ]
    assert "error: --conn-id needs Airflow" in ran.err


def test_importing_the_commands_is_cheap() -> None:
    code = """
import sys
from airflow_provider_lance.cli.main import build_parser
build_parser()
heavy = {"airflow", "lance", "numpy", "pandas", "pyarrow", "pyspark", "rich"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""
    assert python("-c", code).out.strip() == "[]"
