"""What is fuzzed: how an input of each kind is made, read, and how its meaning is checked.

A reader's answer is checked by writing it again, by its range, or by a second, simpler reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from airflow.sdk import Connection

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers.launch_request import LaunchRequest
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.maintenance.options import MaintenanceOptions, MaintenanceSpec
from airflow_provider_lance.operators.recovery import parse_tolerance
from airflow_provider_lance.operators.repair import RepairRequest
from airflow_provider_lance.operators.task_state import DriverTaskState
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import (
    decode_query,
    decode_stamp,
    encode_owner,
    encode_stop,
    fold_updates,
    key,
    require_query_id,
)
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap
from airflow_provider_lance.protocol.consumers import position_updates, read_consumer
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, read_summary
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.triggers.condition import EpochCondition, Position
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger
from airflow_provider_lance.triggers.stop import Stopping
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import SupervisionOutcome
from airflow_provider_lance.triggers.task_log import progress_line
from tests.fuzz.command_line import CommandLine, LookAtReports
from tests.fuzz.nasty import WHOLES, damaged, json_damaged, text, text_damaged, value
from tests.golden import written

VERSION = 57
MOST = 2**63 - 1
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Subject:
    """One kind of input: ``make`` one, then ``read`` it; ``read`` asserts what it means."""

    name: str
    make: Callable[[Random], Any]
    read: Callable[[Any], object]
    share: int = 1
    refusals: tuple[type[Exception], ...] = (LanceStreamError,)


class MemoryFiles:
    """Small files in memory."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self.content = dict(content)

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def names(self, path: str) -> list[str]:
        below = f"{path}/" if path else ""
        found = {n[len(below) :].split("/")[0] for n in self.content if n.startswith(below)}
        return sorted(found)

    def write(self, path: str, content: bytes) -> None:
        self.content[path] = content

    def remove(self, path: str) -> None:
        for name in [name for name in self.content if name.startswith(f"{path}/")]:
            del self.content[name]


# --- What a user writes ---------------------------------------------------------------------------

SINK = {
    "uri": "/data/orders.lance",
    "queryId": "orders",
    "checkpointLocation": "/data/checkpoints/orders",
    "outputMode": "append",
    "smallEpochRows": 20_000,
    "targetRowsPerFragment": "1048576",
    "watermarkEvery": 10,
    "autoCompactEvery": 50,
    "keepVersionsFor": "172800",
    "refreshIndices": True,
    "createIfMissing": True,
    "vectorSizes": {"v": 8},
    "onCheckpointChange": "fail",
    "onHistoryGap": "missing:3@2",
    "storageOptions": {"region": "eu-central-1", "allow_http": True, "timeout": 3},
}


def read_sink(given: Any) -> None:
    options = SinkOptions.parse(given)
    assert SinkOptions.parse(json.loads(json.dumps(options.to_json()))) == options
    for number in (options.target_rows_per_fragment, options.watermark_every):
        assert 1 <= number <= MOST
    for place in (options.uri, options.checkpoint_location):
        assert place.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place), place
        assert not re.search(r"[\x00-\x1f]", place), place
    if options.uri.startswith("/") and options.checkpoint_location.startswith("/"):
        dataset, checkpoint = Path(options.uri), Path(options.checkpoint_location)
        assert dataset not in (checkpoint, *checkpoint.parents)
        assert checkpoint not in (dataset, *dataset.parents)
    assert all(isinstance(item, str) for item in options.storage_options.values())
    json.dumps(options.to_json(), ensure_ascii=False).encode()


def read_job(given: bytes) -> None:
    spec = JobSpec.loads(given)
    assert JobSpec.loads(spec.dumps()) == spec
    assert ID.fullmatch(spec.launch_id)


def read_maintenance(given: bytes) -> None:
    spec = MaintenanceSpec.loads(given)
    assert MaintenanceSpec.loads(spec.dumps()) == spec
    # What Lance and Python do with these numbers must not overflow.
    datetime.fromtimestamp(
        datetime(2026, 1, 1, tzinfo=UTC).timestamp() - spec.options.older_than, UTC
    )
    assert 1 <= spec.options.target_rows({}) <= MOST


def make_config_of_dataset(random: Random) -> Any:
    return {"lance.compaction.target_rows_per_fragment": text(random)}


def read_config_of_dataset(given: Any) -> None:
    assert 1 <= MaintenanceOptions().target_rows(given) <= MOST


def make_gap(random: Random) -> Any:
    if random.random() < 0.4:
        return value(random)
    word = random.choice(["committed", "missing", "fail", "Committed"])
    number = random.choice([text(random), str(random.randrange(100)), str(random.choice(WHOLES))])
    return f"{word}{random.choice([':', ':', ':', ''])}{number}"


def make_id(random: Random) -> Any:
    if random.random() < 0.4:
        return value(random)
    letters = "abcXYZ019._-" * 4 + "/ ü\n\x00²"
    return "".join(random.choice(letters) for _ in range(random.choice([1, 3, 9, 127, 128, 129])))


def read_gap(given: Any) -> None:
    answer = OnHistoryGap.parse(given)
    if answer.epoch_id is None:
        assert given == "fail"
    else:
        assert given == str(answer)
        assert 0 <= answer.epoch_id <= MOST
        assert answer.after_version is not None
        assert 0 <= answer.after_version <= MOST


def read_id(given: Any) -> None:
    assert ID.fullmatch(require_query_id(given))
    RunDirectory(Path("/nowhere"), given, given)


# --- What is in a dataset -------------------------------------------------------------------------


def make_config(random: Random) -> dict[str, str]:
    """Return a config whose texts, or whose JSON in them, may be damaged."""
    names = ("config-active", "config-released", "config-claimed", "config-stop")
    good: dict[str, str] = written.read(random.choice(names))
    config = dict(good)
    for _ in range(random.choice([0, 1, 1, 2])):
        name = random.choice(sorted(config))
        if good[name].startswith("{") and random.random() < 0.8:
            config[name] = _as_text(json_damaged(random, json.loads(good[name])))
        elif random.random() < 0.7:
            config[name] = _without_surrogates(text(random))
        else:
            config[name] = str(random.randrange(-100, 1000))
    return config


def _as_text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _without_surrogates(found: str) -> str:
    return found.encode("utf-8", "replace").decode()  # as any config that Lance returns


def make_consumer(random: Random) -> dict[str, str]:
    [(name, good)] = written.read("config-consumer").items()
    if random.random() < 0.1:
        return {name: _without_surrogates(text(random))}
    return {name: _as_text(json_damaged(random, json.loads(good)))}


def read_a_consumer(config: dict[str, str]) -> None:
    found = read_consumer(config, "hourly", VERSION)
    assert found is not None
    again = {name: str(value) for name, value in position_updates(found).items()}
    assert read_consumer(again, "hourly", VERSION) == found
    assert 1 <= found.offset.oldest_needed <= found.offset.version <= VERSION
    assert 0 <= found.read_to <= VERSION
    assert found.at.tzinfo is UTC
    json.dumps(found.to_json(), ensure_ascii=False).encode()


def read_config(config: dict[str, str]) -> None:
    state = decode_query(config, written.QUERY, VERSION)
    again = fold_updates(
        written.QUERY, state.watermark, state.folded_version, state.committed_at, state.done
    )
    for name, now in again.items():
        if name == key("lastDone", written.QUERY):  # unknown fields are passed over
            assert (name in config) == (now is not None)
            continue
        assert config.get(name) == now or (name not in config and now == "0"), name
    assert 0 <= state.folded_version <= VERSION
    assert -1 <= state.watermark <= MOST
    if state.committed_at:
        assert datetime.fromisoformat(state.committed_at).astimezone(UTC)
    if state.owner is not None:
        given, now = (
            json.loads(config[key("owner", written.QUERY)]),
            json.loads(encode_owner(state.owner)),
        )
        assert {name: given.get(name, "") for name in now} == now
        assert all(type(given.get(name, "")) is type(now[name]) for name in now)
        assert state.owner.token >= 1
        # Whoever looks asks the system about the process, and orders owners by their times.
        driver = state.owner.driver
        ProcessIdentity(driver.host, driver.pid, driver.start).alive()
        assert datetime.fromisoformat(state.owner.time).astimezone(UTC) is not None
    if state.stop_token is not None:
        assert config[key("stop", written.QUERY)] == str(state.stop_token)
    if state.stop_note:
        text_of_note = encode_stop(written.QUERY, state.stop_note)[key("stopNote", written.QUERY)]
        given = json.loads(config[key("stopNote", written.QUERY)])
        assert json.loads(text_of_note or "") == {
            n: given.get(n, "") for n in ("token", "launchId", "by", "time")
        }


STAMP = written.read("transaction-properties")


def make_stamp(random: Random) -> dict[str, str]:
    properties = dict(STAMP)
    for _ in range(random.choice([0, 1, 1, 2])):
        name = random.choice(sorted(STAMP))
        if random.random() < 0.1:
            properties.pop(name, None)
        else:
            properties[name] = _without_surrogates(text(random))
    return properties


def read_stamp(properties: dict[str, str]) -> None:
    stamp = decode_stamp(properties, written.QUERY, VERSION)
    if stamp is None:
        assert properties.get("streaming.queryId") != written.QUERY
        return
    now = {
        "streaming.queryId": stamp.query_id,
        "streaming.epochId": str(stamp.epoch_id),
        "streaming.generation": str(stamp.generation),
        "streaming.token": str(stamp.token),
        "streaming.runId": stamp.run_id,
        "streaming.protocol": str(stamp.protocol),
        "streaming.mode": stamp.mode,
        "streaming.rows": str(stamp.rows),
        "streaming.deletes": str(stamp.deletes),
        "streaming.fragments": str(stamp.fragments),
        "streaming.bytes": str(stamp.bytes),
        "streaming.startedAt": stamp.started_at,
        "streaming.durationMs": str(stamp.duration_ms),
    }
    assert {name: properties[name] for name in now} == now
    assert min(stamp.epoch_id, stamp.rows, stamp.deletes, stamp.fragments, stamp.bytes) >= 0
    assert datetime.fromisoformat(stamp.committed_at).astimezone(UTC)


# --- What lies beside it --------------------------------------------------------------------------


def make_checkpoint(random: Random) -> MemoryFiles:
    files = {"metadata": b'{"id":"c0ffee"}'}
    for epoch in range(3):
        files[f"offsets/{epoch}"] = b'v1\n{"batchTimestampMs":1764000000000}\n{"logOffset":0}'
        files[f"commits/{epoch}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    files.pop(random.choice(["commits/2", "none"]), None)
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        draw, name = random.random(), random.choice(sorted(files))
        if draw < 0.3:
            folder = random.choice(["offsets", "commits"])
            files[f"{folder}/{text(random).replace('/', '_')}"] = b"v1\n{}"
        elif draw < 0.4:
            del files[name]
        elif draw < 0.5:
            files[name] = json.dumps(value(random)).encode("utf-8", "surrogatepass")
        elif draw < 0.6:
            files[name] = (
                b"v1\n" + json.dumps({"batchTimestampMs": value(random)}).encode() + b"\n{}"
            )
        else:
            files[name] = text_damaged(random, files[name].decode("utf-8", "replace"))
    return MemoryFiles(files)


def read_a_checkpoint(files: MemoryFiles) -> None:
    seen = read_checkpoint("/checkpoint", files)
    for folder, newest in (("offsets", seen.planned), ("commits", seen.committed)):
        numbers = [int(n) for n in files.names(folder) if re.fullmatch(r"0|[1-9][0-9]{0,18}", n)]
        assert newest == max((n for n in numbers if n <= MOST), default=-1), folder
    if seen.planned_at is not None:
        datetime.fromisoformat(seen.planned_at)


def make_reports(random: Random) -> MemoryFiles:
    beat = json_damaged(random, written.read("heartbeat"))
    return MemoryFiles(
        {"l/heartbeat.json": beat, "l/summary.json": json_damaged(random, written.read("summary"))}
    )


def read_reports(files: MemoryFiles) -> None:
    heartbeat, summary = read_heartbeat(files, "l"), read_summary(files, "l")
    if heartbeat is not None:
        parsed = Heartbeat.parse(heartbeat)
        assert progress_line(heartbeat).startswith("Epoch ")
        assert parsed.busy >= 0
        assert parsed.committed_at is None or parsed.committed_at.tzinfo
        for number in (
            parsed.token,
            parsed.epoch,
            parsed.version,
            parsed.watermark,
            parsed.total_rows,
        ):
            assert number is None or type(number) is int
        assert parsed.behind is None or parsed.behind == parsed.behind
    if summary is not None:
        given = json.loads(files.content["l/summary.json"])
        for name, now in summary.to_json().items():
            assert _says(given.get(name), now), name


def _says(given: Any, now: Any) -> bool:
    """Return whether a document says what was read: unknown fields are ignored, missing are 0."""
    if isinstance(now, dict) and isinstance(given, dict):
        return all(_says(given.get(name, type(each)()), each) for name, each in now.items())
    if isinstance(now, list) and isinstance(given, list) and len(now) == len(given):
        return all(map(_says, given, now))
    return bool(given == now)


# --- What travels through Airflow -----------------------------------------------------------------


def travelling(document: Any, reader: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return how to damage a document, and how to read it and write it again."""

    def make(random: Random) -> Any:
        return damaged(random, document)

    def read(given: Any) -> None:
        made = reader(given)
        assert reader(made.to_json()) == made

    return make, read


def make_memory(random: Random) -> Any:
    return damaged(random, written.read("task-state"))


class Task:
    try_number, max_tries = 2, 3


def read_memory(note: Any) -> None:
    memory = DriverTaskState.of({"task_state_store": written.Kept(note), "ti": Task()})  # type: ignore[typeddict-item]
    launch = memory.launch
    assert memory.over == "" or launch is None
    assert memory.was_cleared in (True, False)
    if launch is not None:
        assert launch.driver.where()
        assert Launch.from_json(launch.to_json()) == launch


PERMITS = {
    "query_ids": ["orders"],
    "repair": ["watermark"],
    "release": {"epoch": 3, "proven_dead": True},
    "resolve_gap": {"epoch": "3", "after_version": "7", "landed": True, "proven_dead": False},
    "resolve_checkpoint": {"epoch": -1, "location": "/data/checkpoints/orders"},
}
TOLERANCE = {"stall": 600, "silence": timedelta(seconds=120), "small_fragments": 100}


def make_permits(random: Random) -> Any:
    given = damaged(random, PERMITS, plain=False)
    if isinstance(given, dict) and random.random() < 0.8:  # one decision at a time
        kept = random.choice(["release", "resolve_gap", "resolve_checkpoint"])
        given = {
            name: each for name, each in given.items() if name in ("query_ids", "repair", kept)
        }
    return given, damaged(random, TOLERANCE, plain=False)


def read_permits(given: Any) -> None:
    request, tolerance = given
    known = dict.fromkeys(PERMITS) | (request if isinstance(request, dict) else {})
    parse_tolerance(tolerance)
    # Airflow checks the names of an operator's arguments, and this one that it is a list of ids.
    made = RepairRequest.parse(
        **{name: known[name] for name in PERMITS} | {"query_ids": ["orders"]}
    )
    assert made.decision is None or -1 <= made.decision.epoch <= MOST


def make_trigger(random: Random) -> Any:
    kept = read_trigger_kwargs()
    changed = damaged(random, kept, plain=False)
    return {
        name: changed.get(name, kept[name]) if isinstance(changed, dict) else kept[name]
        for name in kept
    }


def read_trigger_kwargs() -> dict[str, Any]:
    return dict(written.read("triggers")[1]["kwargs"])


def read_trigger(given: Any) -> None:
    trigger = LanceEpochEventTrigger(**given)
    assert trigger.serialize()[1] == given
    assert trigger.poll_interval > 0


EXTRA = {"base_uri": "/data", "storage_options": {"region": "eu", "timeout": 3, "allow_http": True}}


def make_connection(random: Random) -> tuple[str, str]:
    return json_damaged(random, EXTRA).decode("utf-8", "replace"), text(random)


def read_connection(given: tuple[str, str]) -> None:
    extra, name = given
    connection = Connection(conn_id="lance", conn_type="lance", extra=extra)

    class Hook(LanceHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    hook = Hook("lance")
    assert all(isinstance(item, str) for item in hook.storage_options.values())
    resolved = hook.resolve(name)
    assert resolved.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", resolved), resolved


ORDER = {
    "command": ["spark-submit", "job.py"],
    "environment": {"PATH": "/bin"},
    "redact": ["s3cr3t"],
    "grace": 60.0,
    "stop": {
        "uri": "/data/orders.lance",
        "storageOptions": {},
        "queryId": "orders",
        "launchId": "launch",
        "by": "",
    },
}


def read_order(given: bytes) -> None:
    order = LaunchRequest.loads(given)
    assert LaunchRequest.loads(order.dumps()) == order


class LaunchFiles:
    """The JSON files of one launch's folder, in a real folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self, random: Random) -> dict[str, bytes]:
        process = written.PROCESS.to_json()
        return {
            "driver.json": json_damaged(random, {"driver": process, "keeper": process}),
            "exit.json": json_damaged(random, {"status": -9, "time": written.TIME}),
            "stop.json": json_damaged(random, {"by": "ana"}),
        }

    def read(self, given: dict[str, bytes]) -> None:
        folder = RunDirectory(self._root, "orders", "launch")
        folder.make()
        for name, content in given.items():
            (folder.path / name).write_bytes(content)
        by, ended = folder.read_stop(), folder.read_exit()
        assert by is None or isinstance(by, str)
        assert ended is None or type(ended["status"]) is int
        document = folder.read_driver()
        if document and "driver" in document:
            launch = {
                **written.LAUNCH.to_json(),
                "process": {**document, "folder": str(folder.path)},
            }
            found = Launch.from_json(launch)
            found.driver.alive()
            found.driver.exit_status()


def subjects(folder: Path) -> list[Subject]:
    """Return everything that is fuzzed; ``folder`` takes what has to lie on a disk."""
    files, terminal = LaunchFiles(folder / "launches"), CommandLine(folder / "typed")
    looks = LookAtReports(folder / "looked")
    event = written.read("stream-event")
    positions = travelling(written.read("watcher-state"), Position.read_whole)
    return [
        Subject("sink options", lambda r: damaged(r, SINK, plain=False), read_sink, 4),
        Subject(
            "job specification", lambda r: json_damaged(r, written.read("job-spec")), read_job, 4
        ),
        Subject(
            "maintenance specification",
            lambda r: json_damaged(r, written.read("maintenance-spec")),
            read_maintenance,
            3,
        ),
        Subject("compaction config", make_config_of_dataset, read_config_of_dataset),
        Subject("answer for a gap", make_gap, read_gap),
        Subject("ids", make_id, read_id),
        Subject("config values", make_config, read_config, 6),
        Subject("position of a consumer", make_consumer, read_a_consumer, 2),
        Subject("stamps", make_stamp, read_stamp, 4),
        Subject("checkpoint files", make_checkpoint, read_a_checkpoint, 4),
        Subject("reports", make_reports, read_reports, 2),
        Subject("order to a watcher", *travelling(event["order"], SupervisionConfig.from_json)),
        Subject("outcome", *travelling(event["outcome"], SupervisionOutcome.from_json)),
        Subject("stop under way", *travelling(written.STOPPING.to_json(), Stopping.from_json)),
        Subject(
            "condition", *travelling(written.CONDITIONS[0].to_json(), EpochCondition.from_json)
        ),
        Subject("position", *positions, refusals=(ValueError,)),
        Subject("task state", make_memory, read_memory),
        Subject("what a task may repair", make_permits, read_permits),
        Subject("event trigger", make_trigger, read_trigger),
        Subject("connection", make_connection, read_connection, 2),
        Subject("launch request", lambda r: json_damaged(r, ORDER), read_order),
        Subject("files of a launch", files.make, files.read),
        Subject("look at reports", looks.make, looks.read, refusals=()),
        Subject("command line", terminal.make, terminal.read, 4, refusals=()),
    ]
