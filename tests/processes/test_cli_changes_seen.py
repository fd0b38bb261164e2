"""What happened to a stream, since when it is not healthy, and what it has not read."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.diagnostics.backlog import find_unread
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.supervision.heartbeat import Unread
from tests.support.cli import QUERY, Stream, typed
from tests.support.maintenance import make, rows


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def shown(stream: Stream) -> dict[str, Any]:
    document: dict[str, Any] = typed("status", stream.uri, QUERY, "-o", "json").document
    return document


def test_changes_say_who_did_what_newest_first(
    stream: Stream, process: subprocess.Popen[bytes]
) -> None:
    lance.dataset(stream.uri).optimize.compact_files()
    lance.dataset(stream.uri).delete("id < 3")
    typed("stop", stream.uri, "--by", "ada", "--yes")
    kill(process)
    assert typed("release", stream.uri, "--by", "grace@desk", "--yes").status == 0
    lance.dataset(stream.uri).checkout_version(4).restore()
    found = shown(stream)["changes"]
    said = [(each["what"], each["by"]) for each in found]
    expected = [
        ("version 4 was restored", ""),
        ("released by hand", "grace@desk"),
        ("a stop was asked for", "ada"),
        ("another client deleted rows", ""),
        ("the dataset was compacted", ""),
        ("a driver claimed it with token 1", "dag:stream"),
        ("a driver was launched", "dag:stream"),
    ]
    assert [each for each in said if each in expected] == expected
    times = [each["at"] for each in found]
    assert times == sorted(times, reverse=True)
    now = datetime.now(UTC)
    assert all(now - datetime.fromisoformat(each) < timedelta(minutes=5) for each in times)
    text = typed("status", stream.uri).out
    version = found[said.index(expected[1])]["version"]
    assert f": released by hand, by grace@desk (version {version})" in text


def test_epochs_and_folds_are_no_change(stream: Stream) -> None:
    stream.step(12)
    said = [each["what"] for each in shown(stream)["changes"]]
    assert said == [
        "a driver claimed it with token 1",
        "the dataset was created",
        "a driver was launched",
    ]


def test_since_is_the_last_sign_of_life_or_the_time_of_a_restore(
    stream: Stream, process: subprocess.Popen[bytes]
) -> None:
    assert shown(stream)["since"] is None
    kill(process)
    dead = shown(stream)
    assert dead["findings"][0]["code"] == "LS102"
    assert dead["since"] == dead["heartbeatAt"]
    assert f"since      {dead['since']} (" in typed("status", stream.uri).out
    lance.dataset(stream.uri).checkout_version(4).restore()
    restored = shown(stream)
    assert restored["findings"][0]["code"] == "LS204"
    [change] = [each for each in restored["changes"] if "restored" in each["what"]]
    assert restored["since"] == change["at"]


class Folder:
    """A file source's folder and checkpoint, as Spark leaves them."""

    def __init__(self, tmp_path: Path) -> None:
        self.source, self.checkpoint = tmp_path / "in put", tmp_path / "checkpoint"
        self.source.mkdir()
        (self.checkpoint / "sources" / "0").mkdir(parents=True)
        self.heartbeat = {
            "progress": {"sources": [{"description": f"FileStreamSource[file:{self.source}]"}]}
        }

    def write(self, *names: str) -> None:
        for name in names:
            (self.source / name).write_text("x")

    def log(self, entry: str, *names: str) -> None:
        path = f"file://{str(self.source).replace(' ', '%20')}"
        lines = [json.dumps({"path": f"{path}/{name}", "batchId": 0}) for name in names]
        (self.checkpoint / "sources" / "0" / entry).write_text("\n".join(["v1", *lines]))

    def unread(self, entry: int) -> Unread | None:
        end = (f'{{"logOffset":{entry}}}',)
        location = str(self.checkpoint)
        checkpoint = Checkpoint(location, "id", 7, 7, ends={7: end})
        return find_unread(self.heartbeat, checkpoint, open_files)


def test_files_that_the_sources_log_does_not_name_are_unread(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a", "b", "c", "d", "_SUCCESS", ".d.crc")
    folder.log("0", "a")
    folder.log("1", "b")
    found = folder.unread(1)
    assert found is not None
    assert (found.rows, found.files, found.seconds is not None) == (2.0, True, True)
    folder.log("2.compact", "a", "b", "c")
    (folder.checkpoint / "sources/0/0").unlink()
    assert folder.unread(1) is None, "an entry is gone, so what was read is unknown"
    found = folder.unread(2)
    assert found is not None
    assert found.rows == 1.0
    folder.log("3", "d")
    found = folder.unread(3)
    assert found is not None
    assert (found.rows, found.seconds) == (0.0, 0.0)


def test_a_folder_that_only_sparks_options_explain_is_unknown(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a")
    folder.log("0", "a")
    assert folder.unread(0) is not None
    (folder.source / "day=1").mkdir()
    assert folder.unread(0) is None
    for description in ("FileStreamSource[file:/data/*.json]", "KafkaV2[Subscribe[t]]"):
        folder.heartbeat = {"progress": {"sources": [{"description": description}]}}
        assert folder.unread(0) is None
    for heartbeat in ({}, {"progress": None}, {"progress": {"sources": [7]}}):
        folder.heartbeat = heartbeat  # type: ignore[assignment]
        assert folder.unread(0) is None


def test_versions_of_a_lance_source_are_counted(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    read = open_dataset(uri)
    end = SourceOffset(read.version, commit_time(read))
    for number in range(3):
        lance.write_dataset(rows(100 * number, 5), uri, mode="append")
    checkpoint = Checkpoint("/cp", "id", 7, 8, ends={8: (json.dumps(end.to_json()),)})
    found = find_unread({"source": {"path": uri}}, checkpoint, open_files)
    assert found is not None
    assert (found.rows, found.versions, found.files) == (15, 3, False)
    assert found.seconds is not None
    assert 0 <= found.seconds < 60
    for source in (None, {}, {"path": f"{tmp_path}/none.lance"}, {"no": "option"}):
        assert find_unread({"source": source}, checkpoint, open_files) is None
    assert find_unread(None, checkpoint, open_files) is None
    assert find_unread({"source": {"path": uri}}, Checkpoint("/cp", "id"), open_files) is None


@pytest.mark.parametrize("has", [True, False])
def test_a_stopped_stream_says_what_it_has_not_read(
    stream: Stream, process: subprocess.Popen[bytes], tmp_path: Path, has: bool
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (stream.checkpoint / "sources" / "0").mkdir(parents=True)
    for number in range(5):
        (folder / str(number)).write_text("x")
        entry = json.dumps({"path": f"file://{folder}/{number}"})
        if number < 4:
            (stream.checkpoint / "sources" / "0" / str(number)).write_text(f"v1\n{entry}")
    if not has:
        (folder / "4").unlink()
    report = next(Path(f"{stream.checkpoint}.reports").glob("*/heartbeat.json"))
    document = json.loads(report.read_text())
    document["progress"] = {"sources": [{"description": f"FileStreamSource[file:{folder}]"}]}
    report.write_text(json.dumps(document))
    assert shown(stream)["rowsBehind"] == float(has), "Spark does not count files"
    kill(process)
    found = shown(stream)
    assert (found["rowsBehind"], found["behindFiles"]) == (float(has), True)
    assert ("behind     1 file" in typed("status", stream.uri).out) is has


def test_what_a_dead_driver_said_last_has_its_age_and_is_no_number(
    stream: Stream, process: subprocess.Popen[bytes]
) -> None:
    report = next(Path(f"{stream.checkpoint}.reports").glob("*/heartbeat.json"))
    document = json.loads(report.read_text())
    ends = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 105}}}
    document["progress"] = {"sources": [{"description": "KafkaV2[Subscribe[t]]", **ends}]}
    report.write_text(json.dumps(document))
    assert shown(stream)["rowsBehind"] == 100.0
    kill(process)
    found = shown(stream)
    assert (found["rowsBehind"], found["lastBehind"]) == (None, "100")
    assert found["behindAt"] == document["time"]
    assert re.search(r"behind     100, seen \d+ s ago", typed("status", stream.uri).out)
