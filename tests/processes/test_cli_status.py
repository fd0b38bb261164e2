"""The commands that only look: the numbers that everybody shows, and what the exit status says."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lance

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.epochs import read_epochs
from airflow_provider_lance.diagnostics.status import take_status
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.cli import QUERY, Stream, typed, write_config

AGES = {"epochAgeSeconds", "sentence", "findings"}
CLI = (sys.executable, "-m", "airflow_provider_lance.cli")


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_status_is_one_sentence_then_the_numbers(stream: Stream) -> None:
    ran = typed("status", stream.uri)
    assert (ran.status, ran.err) == (0, "")
    first, *numbers = ran.out.splitlines()
    assert first.startswith("running: watermark 3, committed ")
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in numbers}
    assert told["watermark"] == f"3 at version {stream.version}"
    assert told["dataset"] == "40 rows in 4 fragments"
    assert told["owner"] == "token 1, active"
    assert told["launch"] == f"{stream.launch_id} by dag:stream"


def test_status_in_json_is_the_status_that_everybody_shows(stream: Stream) -> None:
    one = typed("status", stream.uri, QUERY, "-o", "json").document
    shown = take_status(open_dataset(stream.uri), QUERY, detail=True).to_json()
    assert one.keys() == shown.keys()
    assert {name: one[name] for name in one.keys() - AGES} == {
        name: shown[name] for name in shown.keys() - AGES
    }
    assert [
        each["queryId"] for each in typed("status", stream.uri, "-o", "json").document["statuses"]
    ] == [QUERY]


def test_a_dead_driver_is_unhealthy_and_the_command_to_type_works(
    stream: Stream, process: subprocess.Popen[bytes]
) -> None:
    kill(process)
    ran = typed("status", stream.uri)
    assert ran.status == 1
    assert typed("release", stream.uri, "orders", "--yes").status == 0
    again = typed("status", stream.uri)
    assert (again.status, again.out[:40]) == (1, "dead: nobody runs query orders: released")
    command = f"lance-stream release {stream.uri} orders --for-good --yes"
    assert f"\n       {command}\n" in ran.out
    assert f"\n       {command}\n" in again.out
    assert typed(*command.split()[1:]).status == 0
    meant = typed("status", stream.uri)
    assert (meant.status, meant.out[:19]) == (0, "stopped: released a")


def test_a_driver_that_cannot_be_seen_is_no_verdict(stream: Stream) -> None:
    """The owner is active on a host that is not this one, and where its checkpoint lies as well."""
    owner = stream.config["spark.lance.streaming.owner.orders"]
    elsewhere = owner.replace(str(stream.checkpoint), "nfs://elsewhere/checkpoint")
    for name in ("host", "start"):
        elsewhere = elsewhere.replace(f'"{name}":"', f'"{name}":"not-')
    write_config(
        stream.uri,
        owner=elsewhere,
        lastEpoch="3",
        lastEpochTime="2026-01-01T00:00:00.000+00:00",
        lastEpochVersion=str(stream.version),
    )
    for words in (("status", stream.uri), ("check", stream.uri)):
        ran = typed(*words, "-o", "json")
        assert ran.document["statuses"][0]["state"] == "unknown"
        assert ran.status == 3


def test_epochs_are_those_that_everybody_shows(stream: Stream) -> None:
    stream.step(log=False)
    lance.dataset(stream.uri).optimize.compact_files()
    ran = typed("epochs", stream.uri, "-o", "json", "--last", "3")
    shown = read_epochs(open_dataset(stream.uri), QUERY, last=3).to_json()
    assert ran.document["rows"] == [{**row, **_lists(row)} for row in shown["rows"]]
    assert [row["epoch"] for row in ran.document["rows"]] == [4, 3, 2]
    assert ran.status == 0
    table = typed("epochs", stream.uri, "--last", "3", "--offsets").out
    assert '{"logOffset":3}' in table
    assert "compaction" in table
    rows = [line.split() for line in table.splitlines()]
    [newest] = [row for row in rows if row[1:2] == ["4"]]
    assert "no" in newest, "Spark has not logged it as done"


def _lists(row: dict[str, object]) -> dict[str, object]:
    """JSON has no tuples."""
    return {name: list(value) for name, value in row.items() if isinstance(value, tuple)}


def test_epochs_says_where_versions_are_gone(stream: Stream) -> None:
    assert "cleaned up" not in typed("epochs", stream.uri).out
    lance.dataset(stream.uri).cleanup_old_versions(versions=[3, 4])
    assert "cleaned up" in typed("epochs", stream.uri).out


def test_check_is_the_check_that_everybody_makes(stream: Stream) -> None:
    write_config(stream.uri, lastEpoch="99")
    ran = typed("check", stream.uri, "-o", "json")
    assert ran.status == 1
    shown = check(open_dataset(stream.uri)).to_json()
    assert ran.document.keys() == shown.keys()
    codes = [finding["code"] for finding in ran.document["findings"]]
    assert codes == [finding["code"] for finding in shown["findings"]]
    text = typed("check", stream.uri).out
    assert all(code in text for code in codes)
    causes = [finding["cause"] for finding in shown["findings"] if finding["severity"] != "info"]
    assert causes
    assert all(cause in text for cause in causes)


def test_check_fails_from_the_severity_that_is_asked_for(stream: Stream) -> None:
    assert typed("check", stream.uri).status == 0
    assert typed("check", stream.uri, "--fail-on", "warning").status == 0
    open_dataset(stream.uri).dataset.update_config({"lance.auto_cleanup.interval": "20"})
    assert typed("check", stream.uri).status == 0
    assert typed("check", stream.uri, "--fail-on", "warning").status == 1


def test_tolerance_can_be_typed(stream: Stream) -> None:
    """A driver that is at work on one epoch is stalled once that is longer than is borne."""
    stream.plan(4)
    assert typed("status", stream.uri, "--stall", "1h").status == 0
    assert typed("status", stream.uri, "--stall", "0s").status == 1


def test_watch_prints_a_line_per_change(stream: Stream) -> None:
    ran = typed("watch", stream.uri, "--count", "3", "--interval", "0.01")
    assert ran.status == 0
    [line] = ran.out.splitlines()
    assert "running: watermark 3" in line
    ran = typed("watch", stream.uri, "--count", "1", "-o", "json")
    assert ran.document["watermark"] == 3


def test_watch_until_an_epoch_is_committed(stream: Stream) -> None:
    words = ("watch", stream.uri, "--interval", "0.01", "--until-epoch")
    assert typed(*words, "3").status == 0
    assert typed(*words, "5", "--count", "2").status == 1
    command = [*CLI, *words, "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "watermark 3" in process.stdout.readline()
        stream.step(2)
        assert "watermark 5" in process.communicate(timeout=60)[0].splitlines()[-1]
    assert process.returncode == 0


def test_a_watch_goes_on_while_the_store_is_away(stream: Stream) -> None:
    command = [*CLI, "watch", stream.uri, "--interval", "0.05", "--until-epoch", "4"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        reports = Path(f"{stream.checkpoint}.reports")
        reports.rename(reports.with_name("hidden"))
        reports.write_text("no folder")
        assert "store unreachable: " in process.stderr.readline()
        reports.unlink()
        reports.with_name("hidden").rename(reports)
        stream.step()
        assert "watermark 4" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_watch_on_a_terminal_ends_on_ctrl_c(stream: Stream) -> None:
    master, slave = os.openpty()
    command = [*CLI, "watch", stream.uri, "--interval", "0.05"]
    with subprocess.Popen(command, stdout=slave, stderr=subprocess.PIPE) as process:
        os.close(slave)
        said = b""
        while b"Ctrl-C ends" not in said:
            said += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b""
    os.close(master)
    assert b"running: watermark 3" in said
    assert process.returncode == 0


def test_check_finds_a_dataset_that_was_made_anew_when_the_checkpoint_is_named(
    stream: Stream,
) -> None:
    schema = lance.dataset(stream.uri).schema
    shutil.rmtree(stream.uri)
    lance.write_dataset(schema.empty_table(), stream.uri)
    ran = typed("check", stream.uri, QUERY, "--checkpoint", str(stream.checkpoint), "-o", "json")
    assert ran.status == 1
    assert "LS204" in {finding["code"] for finding in ran.document["findings"]}
