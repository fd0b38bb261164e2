"""Nonsense is refused by name before anything is touched, in whatever form it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from airflow.sdk import Connection

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.maintenance.dataset_metrics import list_versions
from airflow_provider_lance.maintenance.options import MaintenanceOptions, MaintenanceSpec
from airflow_provider_lance.operators.task_state import DriverTaskState
from airflow_provider_lance.plugins.page.rendering import clock
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.option_parsers import contains, location
from airflow_provider_lance.spark.application import read_spec
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, read_summary
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import stop_has_no_requester
from tests.golden import written
from tests.support.cli import typed

SINK = {"uri": "/d/t.lance", "queryId": "q", "checkpointLocation": "/d/cp"}
JOB = {"launchId": "l", "sink": SINK, "source": {"format": "rate"}}
DEEP = "[" * 100_000


# --- Text that is no JSON -------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"\xff\xfe{}", '{"launchId": "\xe9"}'.encode("latin-1")])
def test_a_job_specification_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="not JSON .*UTF-8|not JSON"):
        JobSpec.loads(read_spec(str(path), remove=False))
    with pytest.raises(SpecError, match="not JSON"):
        MaintenanceSpec.loads(read_spec(str(path), remove=False))


@pytest.mark.parametrize("text", [None, 7, DEEP, '{"a": NaN}', f'{{"a": {"9" * 5000}}}', "\ud800"])
@pytest.mark.parametrize("kind", [JobSpec, MaintenanceSpec])
def test_a_specification_that_is_no_json_is_refused(kind: Any, text: Any) -> None:
    with pytest.raises(SpecError, match="specification: not JSON"):
        kind.loads(text)


# --- Options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *(
            "committed:" + "9" * 5000 + "@1",
            f"committed:{2**63}@1",
            f"committed:1@{2**63}",
            "committed:²@1",
            "missing:１@1",
            "missing:-1@1",
        ),
        *("missing: 1@1", "missing:01@1", "missing:1@01", "missing:1@1\n", None, 7, b"fail"),
        *(
            "missing:1",
            "missing:1@",
            "committed:",
            "committed",
            "missing:1:2",
            "missing:1@2@3",
            ["fail"],
            pytest.param(10**5000, id="huge"),
        ),
    ],
)
def test_an_answer_for_a_gap_names_one_epoch(text: object) -> None:
    with pytest.raises(SpecError, match="use 'fail', 'committed:<epoch>@<version>'") as caught:
        OnHistoryGap.parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targetRowsPerFragment": 2**64}, "targetRowsPerFragment must be .* at most 9223372"),
        ({"targetRowsPerFragment": 10**5000}, "targetRowsPerFragment must be .* that cannot be"),
        ({"targetRowsPerFragment": "9" * 5000}, "targetRowsPerFragment must be .* at most"),
        ({"smallEpochRows": 0.0}, r"smallEpochRows must be .*got 0\.0"),
        ({"smallEpochRows": "１"}, "smallEpochRows must be .*got '１'"),
        ({"watermarkEvery": "²"}, "watermarkEvery must be .*got '²'"),
        ({"vectorSizes": {"v": 2**31}}, "vectorSizes must be .* at most 2147483647"),
        ({"vectorSizes": "v:8,v:9"}, "vectorSizes must be .*got 'v:8,v:9'"),
        ({"vectorSizes": ":8"}, "vectorSizes must be .*got ':8'"),
        ({"outputMode": b"append"}, "outputMode must be"),
        ({"storageOptions": {"key": b"bytes"}}, "storageOptions must be"),
        ({"storageOptions": {"key": float("nan")}}, "storageOptions must be"),
        ({"storageOptions": {"key": float("inf")}}, "storageOptions must be"),
        ({"storageOptions": {"key": 10**5000}}, "storageOptions must be"),
        ({"storageOptions": {"key": object()}}, "storageOptions must be"),
        ({"storageOptions": {"": "x"}}, "storageOptions must be"),
        ({"storageOptions": {"key": "\ud800"}}, "storageOptions must be"),
    ],
)
def test_an_option_out_of_range_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SinkOptions.parse(SINK | given)


@pytest.mark.parametrize(
    "trigger", ["² seconds", "１ second", "10 seconds\n", "99999999999 days", "9" * 30 + " seconds"]
)
def test_a_trigger_is_an_interval_that_spark_reads(trigger: str) -> None:
    with pytest.raises(SpecError, match="trigger must be .*'availableNow'"):
        JobSpec.parse(JOB | {"trigger": trigger})


@pytest.mark.parametrize("name", ["olderThan", "deadline"])
@pytest.mark.parametrize("seconds", [10**12, 2**63, "9" * 400, 1e30, float("inf"), float("nan")])
def test_a_duration_of_a_maintenance_run_is_within_a_century(name: str, seconds: Any) -> None:
    with pytest.raises(SpecError, match=f"{name} must be"):
        MaintenanceOptions.parse({name: seconds})


def test_the_longest_duration_is_within_the_calendar() -> None:
    longest = MaintenanceOptions.parse({"olderThan": 100 * 366 * 86_400}).older_than
    assert datetime.now(UTC) - timedelta(seconds=longest) > datetime(1900, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "compaction",
    [
        {"compaction_mode": "nonsense"},
        {"compaction_mode": ["reencode"]},
        {"data_storage_version": "banana"},
        {"materialize_deletions": "perhaps"},
        {"materialize_deletions_threshold": 7},
        {"materialize_deletions_threshold": float("nan")},
        {"defer_index_remap": 1},
        {"excluded_fragment_ids": [-1]},
        {"excluded_fragment_ids": "1"},
        {"num_threads": 2**64},
    ],
)
def test_an_option_of_a_compaction_is_refused_before_it_is_due(compaction: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=f"one whose {next(iter(compaction))} is"):
        MaintenanceOptions.parse({"compaction": compaction})


def test_every_option_of_a_compaction_is_taken_by_lance(tmp_path: Path) -> None:
    from lance.optimize import Compaction, CompactionOptions

    given = {
        "target_rows_per_fragment": "1000",
        "max_rows_per_group": 1024,
        "max_bytes_per_file": 10**9,
        "materialize_deletions": True,
        "materialize_deletions_threshold": 0.5,
        "num_threads": 1,
        "batch_size": 100,
        "io_buffer_size": 10**6,
        "compaction_mode": "try_binary_copy",
        "binary_copy_read_batch_bytes": 10**6,
        "defer_index_remap": "false",
        "max_source_fragments": 10,
        "max_source_rows": 10,
        "max_source_bytes": 10,
        "excluded_fragment_ids": [3],
        "data_storage_version": "stable",
    }
    assert given.keys() == CompactionOptions.__annotations__.keys()
    chosen = MaintenanceOptions.parse({"compaction": given}).compaction
    dataset = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t.lance"))
    Compaction.plan(dataset, dict(chosen))
    for name in ("compaction_mode", "data_storage_version"):  # as the control: Lance does look
        with pytest.raises((ValueError, OSError)):
            Compaction.plan(dataset, {**chosen, name: "nonsense"})


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1.5", ""])
def test_garbage_in_lances_own_config_gives_lances_default(text: str) -> None:
    config = {"lance.compaction.target_rows_per_fragment": text}
    assert MaintenanceOptions().target_rows(config) == 1024 * 1024


# --- Places ---------------------------------------------------------------------------------------

NO_PLACE = [
    *(
        "s3://",
        "s3:///",
        "s3:///x",
        "s3://bucket",
        "s3://bucket/",
        "gs://bucket",
        "file:///",
        "file:",
    ),
    *(
        "file://",
        "file://host/x",
        "a:b",
        "a:",
        "://x",
        "s3:bucket/x",
        "C:\\x",
        "hdfs:///",
        "s3://[",
    ),
    *("/x\n", "\n/x", " /x", "/x ", "/x\ty", "/x\x00y", "/x\x1b[2J", "/", "//", "x", "./x", "../x"),
    *("s3://[x/y", "s3://a\u2100b/x", "/\ud800", "s3://b/x\r\n", "/x\u2028y"),
]


@pytest.mark.parametrize("place", NO_PLACE)
@pytest.mark.parametrize("name", ["uri", "checkpointLocation"])
def test_a_place_is_an_absolute_path_or_a_uri(name: str, place: str) -> None:
    with pytest.raises(SpecError, match=f"{name} must be"):
        SinkOptions.parse(SINK | {name: place})


@pytest.mark.parametrize(
    "place",
    [
        *("/x", "/x/y z", "/a:b", "/x/ü", "file:/x", "file:///x", "s3://b/x", "s3a://b/x/y"),
        *("hdfs:///x", "hdfs://name:8020/x", "abfss://c@a.dfs.core.windows.net/x", "gs://b/x?y=1"),
        "s3+ddb://b/x?ddbTableName=t",
    ],
)
def test_a_place_that_a_store_may_have_is_taken_as_it_is(place: str) -> None:
    assert location(place) == location(f"{place}/") == place


SPELLINGS = [
    "/d/t.lance",
    "file:/d/t.lance",
    "file:///d/t.lance",
    "/d//t.lance/",
    "/d/x/../t.lance",
]


@pytest.mark.parametrize("outer", SPELLINGS)
@pytest.mark.parametrize("inner", SPELLINGS)
def test_neither_of_dataset_and_checkpoint_lies_in_the_other(outer: str, inner: str) -> None:
    inside = f"{inner}/within"
    with pytest.raises(SpecError, match=f"^checkpointLocation '{re.escape(inside)}'"):
        SinkOptions.parse(SINK | {"uri": outer, "checkpointLocation": inside})
    with pytest.raises(SpecError, match="^checkpointLocation '"):
        SinkOptions.parse(SINK | {"uri": outer, "checkpointLocation": inner})
    with pytest.raises(SpecError, match=f"^the dataset '{re.escape(inside)}'"):
        SinkOptions.parse(SINK | {"uri": inside, "checkpointLocation": outer})


def test_places_of_a_store_are_compared_in_one_spelling_too() -> None:
    assert contains("s3://b/t.lance", "s3a://b/t.lance/cp")
    assert contains("file:///a%20b", "/a b/c")
    assert not contains("s3://b/t", "s3://b/t.lance")
    assert not contains("s3://b/t", "s3://other/t/x")
    assert not contains("/b/t", "s3://b/t/x")
    with pytest.raises(SpecError, match=r"'/d/cp\.reports'.*checkpointLocation"):
        SinkOptions.parse(SINK | {"uri": "/d/cp.reports/t.lance"})


@pytest.mark.parametrize("place", ["s3:", "s3://", "a:b", "x", "\ud800", "file://", "/x\n"])
def test_a_place_of_files_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(SpecError, match="cannot open"):
        open_files(place)


# --- What others wrote ----------------------------------------------------------------------------


def hook(extra: str) -> LanceHook:
    connection = Connection(conn_id="lance", conn_type="lance", extra=extra)

    class Hook(LanceHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    return Hook("lance")


@pytest.mark.parametrize(
    "extra",
    [
        *(DEEP, "[" * 100_000 + "]" * 100_000, f'{{"storage_options": {{"a": {"9" * 5000}}}}}'),
        *('{"storage_options": {"a": NaN}}', '{"storage_options": {"a": 1e999}}'),
        *(
            '{"base_uri": "a:b"}',
            '{"base_uri": "s3://"}',
            '{"base_uri": "/x\\n"}',
        ),
    ],
)
def test_the_extra_of_a_connection_is_read_strictly(extra: str) -> None:
    with pytest.raises(SpecError, match="connection 'lance'"):
        print(hook(extra).store)


@pytest.mark.parametrize("uri", ["a:b", "s3://", "file:///", "s3://[x", "/x\ny", "s3:x"])
def test_a_uri_that_names_no_place_is_refused_by_the_hook(uri: str) -> None:
    with pytest.raises(SpecError, match=f"got {re.escape(repr(uri))}"):
        LanceHook(None).resolve(uri)


def test_a_uri_with_credentials_is_refused_and_they_are_not_shown() -> None:
    uri = "s3://KEY:SECRET@bucket/x"
    readers: list[Callable[[], object]] = [
        lambda: SinkOptions.parse(SINK | {"uri": uri}),
        lambda: LanceHook(None).resolve(uri),
        lambda: hook(json.dumps({"base_uri": uri})).store,
    ]
    for read in readers:
        with pytest.raises(SpecError, match="a URI without credentials") as caught:
            read()
        assert "s3://bucket/x" in str(caught.value) or "connection" in str(caught.value)
        assert "SECRET" not in str(caught.value)


class Report:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, path: str) -> bytes:
        return self.content


@pytest.mark.parametrize(
    "content",
    [
        b'{"reason": "paused"}',
        json.dumps(written.SUMMARY.to_json() | {"rows": "many"}).encode(),
        json.dumps(written.SUMMARY.to_json() | {"watermark": None}).encode(),
        json.dumps(written.SUMMARY.to_json() | {"released": 1}).encode(),
    ],
)
def test_a_summary_of_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(SpecError, match=r"summary\.json of launch x"):
        read_summary(Report(content), "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"{}", b"{", b"[" * 100_000, b"\xff", b"null", b"7"])
def test_a_summary_that_is_no_document_is_none_yet(content: bytes) -> None:
    assert read_summary(Report(content), "x") is None  # type: ignore[arg-type]


def test_a_heartbeat_of_another_form_is_read_as_far_as_it_goes() -> None:
    assert read_heartbeat(Report(b"[" * 100_000), "launch") is None  # type: ignore[arg-type]
    source = {"latestOffset": {"t": {"0": 10**400}}, "endOffset": {"t": {"0": "NaN"}}}
    beat = {"time": 7, "state": ["running"], "progress": {"sources": [source]}}
    heartbeat = Heartbeat.parse(beat)
    assert (heartbeat.time, heartbeat.state, heartbeat.behind) == ("", "", None)


@pytest.mark.parametrize(
    "note",
    [
        *(
            "text",
            7,
            [],
            {"launch": "x"},
            {"launch": {"launchId": "l"}},
            {"launch": {}, "tries": 3},
        ),
        {**written.read("task-state"), "tries": ["1", 2]},
        {**written.read("task-state"), "launch": written.LAUNCH.to_json() | {"launchedAt": "noon"}},
    ],
)
def test_unreadable_state_of_an_earlier_try_is_ignored(note: Any) -> None:
    class Task:
        try_number, max_tries = 2, 3

    context: Any = {"task_state_store": written.Kept(note), "ti": Task()}
    memory = DriverTaskState.of(context)
    assert (memory.launch, memory.over, memory.was_cleared) == (None, "", False)


@pytest.mark.parametrize("deadline", ["noon", "2026-11-20T14:00:00", 7])
def test_supervision_config_and_launch_are_read_strictly(deadline: Any) -> None:
    with pytest.raises(SpecError, match="deadline is .*ISO 8601"):
        SupervisionConfig.from_json(written.ORDER.to_json() | {"deadline": deadline})
    with pytest.raises(SpecError, match="launchedAt is .*ISO 8601"):
        Launch.from_json(written.LAUNCH.to_json() | {"launchedAt": deadline})


def test_requester_of_a_stop_may_have_any_name() -> None:
    for number in ("²", "9" * 5000, "", "x"):
        assert not stop_has_no_requester(f"d/t/r/-1#{number}", "d/t/r/-1#") or number == ""


def test_files_of_a_launch_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path, "q", "launch")
    folder.make()
    for content in (b"\xff", b"[" * 100_000, b"{}", b'{"status": "0", "by": 7}', b"7"):
        for name in ("exit.json", "stop.json"):
            (folder.path / name).write_bytes(content)
        assert (folder.read_exit(), folder.read_stop()) == (None, None)


def test_names_beside_the_manifests_are_passed_over(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"a": [1]}), uri)
    before = list_versions(open_dataset(uri))
    for name in ("²", "9" * 200, "x", "1_0"):
        Path(uri, "_versions", f"{name}.manifest").write_bytes(b"")
    assert list_versions(open_dataset(uri)) == before


@pytest.mark.parametrize(
    "words",
    [
        ("status", "a:b"),
        ("status", "s3://"),
        ("status", "file:///"),
        ("status", "\udcff"),
        ("status", "x\n"),
        ("status", "x", "--stall", "9" * 400),
        ("status", "x", "--stall", "１"),
        ("cleanup", "x", "--older-than", "99999999999d"),
        ("cleanup", "x", "--older-than", "1" + "0" * 12),
        ("optimize", "x", "--target-rows", str(2**64)),
        ("epochs", "x", "--last", "9" * 5000),
        ("watch", "x", "--count", "0"),
        ("status", "x", "--storage-option", "endpoint=http://[x"),
    ],
)
def test_wrong_usage_prints_one_error_line_and_exits_with_2(words: tuple[str, ...]) -> None:
    ran = typed(*words)
    assert ran.status == 2, ran
    assert len([line for line in ran.err.splitlines() if "error: " in line]) == 1, ran.err
    assert len(ran.err) < 3000


def test_what_is_shown_in_a_message_is_short() -> None:
    assert shown("x" * 1000) == f"'{'x' * 79}… (1002 characters)"
    assert shown(10**5000).startswith("a int ")
    assert shown("a\nb") == r"'a\nb'"


def test_a_time_outside_of_the_calendar_is_shown_as_it_is() -> None:
    assert clock("0001-01-01T00:00+14:00") == "0001-01-01T00:00+14:00"
    assert clock("2026-11-20T14:00:00+01:00") == "2026-11-20 13:00:00"
