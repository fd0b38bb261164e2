"""The table of epochs: the dataset's history with the checkpoint's logs beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.cli.epochs import _show
from airflow_provider_lance.cli.output import Output
from airflow_provider_lance.diagnostics.epoch_sources import readable_offset
from airflow_provider_lance.diagnostics.epochs import EpochTable, read_epochs
from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.added_columns import AddedColumns, encode_added
from airflow_provider_lance.protocol.port import AddColumns, Append, Configure
from airflow_provider_lance.repair.actions import resolve_checkpoint
from tests.support.drivers import QUERY
from tests.support.repairing import HERE, CheckpointDriver, Scene, lance_scene, twin_scene


@pytest.fixture(params=["twin", "lance"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return twin_scene(tmp_path) if request.param == "twin" else lance_scene(tmp_path)


@pytest.fixture
def real(tmp_path: Path) -> Scene:
    return lance_scene(tmp_path)


def table(scene: Scene, **options: Any) -> EpochTable:
    return read_epochs(scene.world.open(), QUERY, **options)


def dataset(scene: Scene) -> lance.LanceDataset:
    port: Any = scene.world.open()
    found: lance.LanceDataset = port.dataset
    return found


def test_an_epoch_shows_what_its_commit_and_the_checkpoint_say(scene: Scene) -> None:
    driver = CheckpointDriver(scene, "run-1")
    driver.step(epochs=2)
    driver.land(driver.plan())
    found = table(scene)
    assert [row.epoch for row in found.rows] == [2, 1, 0]
    newest = found.rows[0]
    assert (newest.rows, newest.fragments, newest.deletes, newest.mode) == (3, 1, 0, "append")
    assert (newest.run_id, newest.token, newest.generation) == ("run-1", 1, 0)
    assert newest.version == scene.world.open().version
    assert newest.duration_ms >= 0
    assert [row.spark_committed for row in found.rows] == [False, True, True]
    assert [row.end_offsets for row in found.rows] == [('{"n":3}',), ('{"n":2}',), ('{"n":1}',)]
    assert [row.start_offsets for row in found.rows] == [('{"n":2}',), ('{"n":1}',), ("-",)]
    assert {row.batch_ms for row in found.rows} == {None}
    assert (found.gap, found.puzzle, found.marks) == (False, "", ())


def test_what_spark_no_longer_keeps_is_not_known(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=3)
    for folder in ("offsets", "commits"):
        for epoch in ("0", "1"):
            Path(scene.checkpoint, folder, epoch).unlink()
    rows = table(scene).rows
    assert [row.spark_committed for row in rows] == [True, None, None]
    assert [row.end_offsets for row in rows] == [('{"n":3}',), None, None]
    assert [row.start_offsets for row in rows] == [None, None, None]


LANCE_OFFSET = '{"version": 7, "timestamp": 5, "index": %s, "snapshot": true, "sourceVersion": 1}'


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        (LANCE_OFFSET % "null", "version 7"),
        (LANCE_OFFSET % 300, "row 300 of the snapshot of version 7"),
        (f"orders:{LANCE_OFFSET % 'null'}", "orders: version 7"),
        ('{"version":7}', '{"version":7}'),
        ('{"orders":{"0":7}}', '{"orders":{"0":7}}'),
        ("orders:-", "orders:-"),
        ("7", "7"),
        ("{", "{"),
    ],
)
def test_an_offset_of_a_lance_source_is_readable_and_others_stay(text: str, readable: str) -> None:
    assert readable_offset(text) == readable


def test_offsets_of_another_form_are_not_guessed(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    for text in ("v3\n{}\n0: x\n", "", "v1"):
        Path(scene.checkpoint, "offsets", "0").write_text(text)
        assert table(scene).rows[0].end_offsets in (None, ())
    Path(scene.checkpoint, "offsets", "0").write_text('v1\n{}\n-\n{"a":1}\n')
    assert table(scene).rows[0].end_offsets == ("-", '{"a":1}')


def test_offsets_of_named_sources_are_told_by_their_names(scene: Scene) -> None:
    # As Spark 4.3 writes them with source evolution: in any order, and sources may be added.
    driver = CheckpointDriver(scene, "run-1")
    driver.step(epochs=2)
    offsets = Path(scene.checkpoint, "offsets")
    (offsets / "0").write_text('v2\n{}\nb:{"n":1}')
    (offsets / "1").write_text('v2\n{}\nb:{"n":2}\na:{"n":7}')
    newest, oldest = table(scene).rows
    assert newest.end_offsets == ('a:{"n":7}', 'b:{"n":2}')
    assert newest.start_offsets == ("a:-", 'b:{"n":1}')
    assert (oldest.end_offsets, oldest.start_offsets) == (('b:{"n":1}',), ("b:-",))


def test_columns_that_any_query_added_are_a_mark_with_their_own_time(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "2026-11-20T14:00:00.000+00:00"
    for query in ("other", QUERY):
        added = AddedColumns(query, 3, 0, 1, "run", at, {"x": "int64", "s.b": "string"})
        column = pa.schema([(f"x_{query}", pa.int64())])
        scene.world.open().commit(AddColumns(column), encode_added(added))
    scene.world.open().commit(Configure({"a.b": "c"}), {"streaming.addedColumns": "{"})
    CheckpointDriver(scene).step()
    said = "epoch 3 added columns x (int64), s.b (string), query "
    marks = [(mark.kind, mark.at, mark.what) for mark in table(scene).marks]
    assert marks == [("columns", at, said + QUERY), ("columns", at, said + "other")]
    _show(table(scene), Output(), offsets=False)
    assert f"{at}: {said}{QUERY}" in capsys.readouterr().out


def test_only_as_many_epochs_as_asked_for_are_read(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=30)
    found = table(scene, last=5)
    assert [row.epoch for row in found.rows] == [29, 28, 27, 26, 25]
    assert found.seen_versions < 10


def test_the_walk_is_bounded_however_many_versions_there_are(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    for number in range(60):
        scene.world.open().commit(Configure({"somebody": str(number)}))
    found = table(scene, last=2)
    assert (found.rows, found.gap) == ((), False)
    assert found.seen_versions == 28


def test_versions_that_were_cleaned_up_are_a_gap(scene: Scene) -> None:
    driver = CheckpointDriver(scene)
    driver.step(epochs=9)
    scene.world.clean_up()
    driver.step(epochs=2)
    found = table(scene)
    assert [row.epoch for row in found.rows] == [10, 9, 8]
    assert found.gap
    assert found.seen_versions < 12  # it gives up when one after the other is gone
    assert not table(scene, last=3).gap


def test_an_older_generation_has_no_part_in_the_checkpoint_of_now(scene: Scene) -> None:
    CheckpointDriver(scene).step(epochs=2)
    shutil.rmtree(scene.checkpoint)
    Path(scene.checkpoint).mkdir()
    Path(scene.checkpoint, "metadata").write_text('{"id": "second"}')
    resolve_checkpoint(scene.world.open(), QUERY, scene.checkpoint, by="anna")
    CheckpointDriver(scene, checkpoint_id="second").step()
    rows = table(scene).rows
    assert [(row.epoch, row.generation) for row in rows] == [(0, 1), (1, 0), (0, 0)]
    assert [row.spark_committed for row in rows] == [True, None, None]
    assert [row.end_offsets is None for row in rows] == [False, True, True]


def test_unreadable_checkpoint_leaves_the_epochs_and_a_reason(scene: Scene, tmp_path: Path) -> None:
    CheckpointDriver(scene).step()
    moved = Path(scene.checkpoint).rename(tmp_path / "moved")
    found = table(scene)
    assert (found.rows[0].end_offsets, found.rows[0].spark_committed) == (None, None)
    for location, puzzle in (("strange://x", "strange"), ("relative", "absolute path")):
        found = table(scene, checkpoint_location=location)
        assert puzzle in found.puzzle
        assert len(found.rows) == 1
    assert table(scene, checkpoint_location=str(moved)).rows[0].spark_committed is True
    (moved / "metadata").write_text('{"id": "another"}')
    found = table(scene, checkpoint_location=str(moved))
    assert "has id another" in found.puzzle
    assert found.rows[0].end_offsets is None


def test_durations_come_from_the_heartbeats_of_the_same_run(scene: Scene) -> None:
    CheckpointDriver(scene, "run-1").step(epochs=2)
    recent = [
        {"epoch": 0, "batchMs": 210, "writeMs": 40.5, "commitMs": 3.5},
        {"epoch": 1, "batchMs": None, "writeMs": "odd"},
        "odd",
    ]
    folder = Path(f"{scene.checkpoint}.reports")
    for launch, run_id in (("20260101T000000000Z-0", "run-1"), ("20260102T000000000Z-0", "run-2")):
        (folder / launch).mkdir(parents=True)
        document = {
            "queryId": QUERY,
            "driver": {**HERE.to_json(), "runId": run_id},
            "recent": recent if run_id == "run-1" else [{"epoch": 0, "batchMs": 1}],
        }
        (folder / launch / "heartbeat.json").write_text(json.dumps(document))
    newest, oldest = table(scene).rows
    assert (oldest.batch_ms, oldest.write_ms, oldest.commit_ms) == (210, 40.5, 3.5)
    assert (newest.batch_ms, newest.write_ms, newest.commit_ms) == (None, None, None)
    (folder / "20260101T000000000Z-0" / "heartbeat.json").write_text("[]")
    assert table(scene).rows[1].batch_ms is None


def test_compactions_indices_and_foreign_commits_are_marked(real: Scene) -> None:
    driver = CheckpointDriver(real)
    driver.step(epochs=2)
    dataset(real).create_scalar_index("id", "BTREE")
    driver.step()
    dataset(real).optimize.compact_files()  # with an index to remap, which pylance cannot read back
    remapped = real.world.open().version
    with pytest.raises(TypeError):
        dataset(real).read_transaction(remapped)
    driver.step()
    dataset(real).delete("id = 0")
    deleted = real.world.open().version
    driver.step()
    other = CheckpointDriver(Scene(real.world, real.folder / "other", "other"))
    other.step()
    found = table(real)
    kinds = {mark.version: mark.kind for mark in found.marks}
    assert sorted(kinds.values()) == ["compaction", "index", "other"]
    assert (kinds[remapped], kinds[deleted]) == ("compaction", "other")
    assert [mark.version for mark in found.marks] == sorted(kinds, reverse=True)
    for mark in found.marks:
        before = next(row for row in found.rows if row.version < mark.version)
        assert mark.at == before.committed_at


def test_a_compaction_without_an_index_is_marked_too(real: Scene) -> None:
    driver = CheckpointDriver(real)
    driver.step(epochs=3)
    dataset(real).optimize.compact_files()
    assert [mark.kind for mark in table(real).marks] == ["compaction"]


def test_foreign_append_is_marked(real: Scene) -> None:
    CheckpointDriver(real).step()
    lance.write_dataset(
        pa.table({"id": pa.array([7], pa.int64()), "epoch": pa.array([7], pa.int64())}),
        dataset(real).uri,
        mode="append",
    )
    assert [mark.kind for mark in table(real).marks] == ["other"]


def test_a_query_that_is_not_known_has_no_epochs(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    found = read_epochs(scene.world.open(), "other")
    assert (found.rows, found.marks, found.puzzle) == ((), (), "")


def test_the_table_travels_as_json(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    document = json.loads(json.dumps(table(scene).to_json()))
    (row,) = document["rows"]
    assert (row["epoch"], row["endOffsets"], row["sparkCommitted"]) == (0, ['{"n":1}'], True)
    assert {"seenVersions", "gap", "marks", "uri", "queryId", "puzzle"} < set(document)


def test_a_newer_protocol_is_refused_by_name(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    stamp = {"streaming.queryId": QUERY, "streaming.protocol": "99", "streaming.epochId": "1"}
    port = scene.world.open()
    port.commit(Append(scene.world.fragments(port, [{"id": 1, "epoch": 1}])), stamp)
    with pytest.raises(ProtocolVersionError, match="protocol 99"):
        table(scene)
