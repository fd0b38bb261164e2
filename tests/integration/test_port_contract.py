"""What the protocol relies on in Lance, checked on the real one and on the twin alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.port import (
    AddColumns,
    Append,
    Barrier,
    Change,
    Configure,
    DatasetPort,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import World, epoch_rows, lance_world, twin_world
from tests.support.s3 import IMPATIENT, s3_server

LANDS, PREEMPTED = True, False

# Rows: what landed first; columns: what is then committed from the older version.
MATRIX = {
    ("append", "append"): LANDS,
    ("append", "upsert"): LANDS,
    ("append", "configure"): LANDS,
    ("append", "barrier"): PREEMPTED,
    ("append", "overwrite"): PREEMPTED,
    ("configure", "append"): LANDS,
    ("configure", "upsert"): LANDS,
    ("configure", "configure"): PREEMPTED,
    ("configure", "configure other key"): LANDS,
    ("configure", "barrier"): LANDS,
    ("configure", "overwrite"): PREEMPTED,
    ("barrier", "append"): PREEMPTED,
    ("barrier", "upsert"): PREEMPTED,
    ("barrier", "barrier"): PREEMPTED,
    ("barrier", "configure"): LANDS,
    ("barrier", "overwrite"): PREEMPTED,
    ("upsert", "append"): LANDS,
    ("upsert", "upsert"): PREEMPTED,
    ("upsert", "barrier"): PREEMPTED,
    ("upsert", "configure"): LANDS,
    ("upsert", "overwrite"): PREEMPTED,
    ("overwrite", "append"): PREEMPTED,
    ("overwrite", "upsert"): PREEMPTED,
    ("overwrite", "overwrite"): PREEMPTED,
    ("overwrite", "barrier"): PREEMPTED,
    ("overwrite", "configure"): LANDS,
    ("add columns", "append"): PREEMPTED,
    ("add columns", "upsert"): PREEMPTED,
    ("add columns", "add columns"): PREEMPTED,
    ("add columns", "barrier"): PREEMPTED,
    ("add columns", "configure"): LANDS,
    ("add columns", "overwrite"): PREEMPTED,
    ("append", "add columns"): PREEMPTED,
    ("upsert", "add columns"): PREEMPTED,
    ("overwrite", "add columns"): PREEMPTED,
    ("barrier", "add columns"): PREEMPTED,
    ("configure", "add columns"): LANDS,
    ("compaction", "add columns"): LANDS,
    ("compaction", "append"): LANDS,
    ("compaction", "upsert"): PREEMPTED,
    ("compaction", "configure"): LANDS,
    ("compaction", "barrier"): LANDS,
    ("compaction", "overwrite"): PREEMPTED,
}


@pytest.fixture(params=["twin", "lance", "stable row ids"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    stable = request.param == "stable row ids"
    world = (
        twin_world(InMemoryDataset())
        if request.param == "twin"
        else lance_world(str(tmp_path / "t.lance"), stable_row_ids=stable)
    )
    port = world.open()
    for n in range(2):
        port = port.commit(Append(world.fragments(port, epoch_rows(n))))
    return world


def change(world: World, port: DatasetPort, name: str) -> Change:
    made: dict[str, Callable[[], Change]] = {
        "append": lambda: Append(world.fragments(port, epoch_rows(7))),
        "overwrite": lambda: Overwrite(world.fragments(port, epoch_rows(8))),
        "upsert": lambda: Upsert(
            world.fragments(port, epoch_rows(0)), world.keys(epoch_rows(0)), ("id",)
        ),
        "configure": lambda: Configure({"a.b": "1"}),
        "configure other key": lambda: Configure({"a.c": "1"}),
        "barrier": Barrier,
        "add columns": lambda: AddColumns(pa.schema([("x", pa.int64())])),
    }
    return made[name]()


@pytest.mark.parametrize(("landed", "then"), list(MATRIX), ids=lambda name: name)
def test_the_conflict_matrix(world: World, landed: str, then: str) -> None:
    port = world.open()
    ours = change(world, port, then)
    if landed == "compaction":
        world.compact()
    else:
        port.latest().commit(change(world, port, landed))
    head = world.open().version
    if MATRIX[landed, then]:
        assert port.commit(ours).version == head + 1
    else:
        with pytest.raises(CommitPreemptedError):
            port.commit(ours)
        assert world.open().version == head


def test_added_columns_change_the_layout_once_and_no_row(world: World) -> None:
    before = world.open()
    landed = before.commit(AddColumns(pa.schema([("x", pa.int64())])), {"a": "b"})
    assert landed.layout != before.layout
    assert landed.layout == world.open().layout
    assert landed.properties(landed.version) == {"a": "b"}
    known = [{"id": row["id"], "epoch": row["epoch"]} for row in world.rows()]
    assert known == [*epoch_rows(0), *epoch_rows(1)]
    assert all(row.get("x") is None for row in world.rows())
    world.compact()
    assert world.open().layout == landed.layout


def test_a_commit_carries_its_properties_and_keeps_the_config(world: World) -> None:
    port = world.open().commit(Configure({"a.b": "1", "user.key": "x"}))
    port = port.commit(Append(world.fragments(port, epoch_rows(3))), {"streaming.epochId": "3"})
    assert port.properties(port.version) == {"streaming.epochId": "3"}
    assert port.properties(port.version - 1) == {}
    port = port.commit(Overwrite(world.fragments(port, epoch_rows(4))))
    assert port.config["user.key"] == "x"
    assert [row["epoch"] for row in world.rows()] == [4, 4, 4]
    port = port.commit(Configure({"a.b": None}))
    assert "a.b" not in port.config


def test_cleanup_takes_the_evidence_along(world: World) -> None:
    port = world.open()
    first = port.version
    port = port.commit(Append(world.fragments(port, epoch_rows(3))), {"k": "v"})
    port.commit(Configure({"a": "1"}))
    world.clean_up()
    assert world.open().properties(first + 1) is None


def test_an_upsert_replaces_by_key_and_adds_the_rest(world: World) -> None:
    port = world.open()
    rows = [{"id": 1, "epoch": 50}, {"id": 999, "epoch": 50}]
    gone = [{"id": 2, "epoch": 0}]
    port.commit(Upsert(world.fragments(port, rows), world.keys(rows + gone), ("id",)))
    after = {row["id"]: row["epoch"] for row in world.rows()}
    assert after == {0: 0, 1: 50, 100: 1, 101: 1, 102: 1, 999: 50}
    assert len(world.rows()) == len(after)


def test_handle_stays_at_its_version_after_a_commit(world: World) -> None:
    port = world.open()
    version = port.version
    newer = port.commit(Configure({"a": "1"}))
    assert (port.version, dict(port.config)) == (version, {})
    assert port.latest().version == newer.version


# ------------------------------------------------------------------------- Lance alone


def test_a_missing_dataset_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="createIfMissing"):
        open_dataset(str(tmp_path / "nope.lance"))


def test_a_dataset_that_is_dropped_under_a_handle_has_the_same_error(tmp_path: Path) -> None:
    import shutil

    port = lance_world(str(tmp_path / "t.lance")).open()
    shutil.rmtree(tmp_path / "t.lance")
    with pytest.raises(DatasetNotFoundError):
        port.latest()


def test_an_unreachable_store_has_its_own_error() -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:9",
        "allow_http": "true",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "very-secret",
        "aws_region": "us-east-1",
        "client_max_retries": "0",
    }
    with pytest.raises(StorageUnavailableError, match="cannot read") as caught:
        open_dataset("s3://nope/x.lance", options)
    assert "very-secret" not in str(caught.value)


def test_the_barrier_keeps_indices_and_their_coverage(tmp_path: Path) -> None:
    world = lance_world(str(tmp_path / "t.lance"))
    port = world.open()
    port = port.commit(Append(world.fragments(port, epoch_rows(1))))
    port.dataset.create_scalar_index("id", "BTREE")
    port = port.latest()
    before = port.dataset.stats.index_stats("id_idx")
    port = port.commit(Barrier())
    after = port.dataset.stats.index_stats("id_idx")
    assert (after["num_indexed_rows"], after["num_unindexed_rows"]) == (
        before["num_indexed_rows"],
        before["num_unindexed_rows"],
    )


@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_an_upsert_is_right_under_an_index(tmp_path: Path, stable_row_ids: bool) -> None:
    import lance
    import pyarrow as pa

    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(2000), "epoch": [0] * 2000})
    dataset = lance.write_dataset(
        table, uri, max_rows_per_file=500, enable_stable_row_ids=stable_row_ids
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("epoch", "BTREE")
    world = lance_world(uri)
    for n in range(1, 4):
        port = world.open()
        rows = [{"id": id_, "epoch": n} for id_ in (5, 700, 1999, 5000 + n)]
        port.commit(Upsert(world.fragments(port, rows), world.keys(rows), ("id",)))
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == 2003
    assert dataset.count_rows("id = 5") == 1
    assert dataset.to_table(filter="id = 5").to_pylist() == [{"id": 5, "epoch": 3}]
    assert dataset.count_rows("epoch = 3") == 4
    assert dataset.count_rows("epoch = 1") == 1
    assert dataset.count_rows("id = 5001") == 1
    dataset.optimize.optimize_indices()
    dataset.optimize.compact_files()
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == 2003
    assert dataset.to_table(filter="id = 700").to_pylist() == [{"id": 700, "epoch": 3}]


def test_an_attempt_is_one_manifest(tmp_path: Path) -> None:
    """Lance must not retry on its own: see the committer's second invariant."""
    world = lance_world(str(tmp_path / "t.lance"))
    port = world.open()
    assert isinstance(port, LanceDatasetPort)
    fragments = world.fragments(port, epoch_rows(1))
    for n in range(5):
        port.latest().commit(Configure({"k": str(n)}))
    landed = port.commit(Append(fragments))
    assert landed.version == port.version + 6, "a stale append is rebased over what landed before"


def test_threads_may_share_a_port(world: World) -> None:
    port = world.open()
    for n in range(40):
        port = port.commit(Configure({"a.b": str(n)}), {"k": str(n)})

    def read() -> None:
        for version in range(1, port.version + 1):
            port.properties(version)

    def look() -> None:
        for _ in range(200):
            assert port.latest().version == port.version
            assert port.config["a.b"] == "39"

    with ThreadPoolExecutor(6) as pool:
        started = [pool.submit(work) for work in (read, look) * 3]
    for each in started:
        each.result()


@pytest.mark.parametrize("rows", [0, 3], ids=["made empty", "made with rows"])
def test_a_port_of_a_recreated_dataset_is_not_intact(tmp_path: Path, rows: int) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": pa.array(range(rows), pa.int64())})
    lance.write_dataset(table, uri)
    port = open_dataset(uri)
    assert port.is_intact()
    more = pa.table({"id": pa.array([7], pa.int64())})
    port = port.commit(Append(list(write_fragments(more, port.dataset))))
    assert port.is_intact()
    shutil.rmtree(uri)
    for _ in range(port.version + 1):
        lance.write_dataset(more, uri, mode="append" if Path(uri).exists() else "create")
    assert not port.is_intact()
    assert not port.is_intact(), "however often it is asked"


def test_each_read_of_a_store_that_went_away_has_one_error() -> None:
    """A file session raises RuntimeError, where the other calls raise OSError (pylance 14.0.2)."""
    rows = pa.table({"id": pa.array([7], pa.int64())})
    with s3_server() as server:
        uri, options = server.uri("t.lance"), server.options(**IMPATIENT)
        lance.write_dataset(rows, uri, storage_options=options)
        ports = [open_dataset(uri, options) for _ in range(5)]
    reads: list[Callable[[LanceDatasetPort], object]] = [
        LanceDatasetPort.is_intact,
        LanceDatasetPort.newest_intact,
        LanceDatasetPort.latest,
        lambda port: port.at(7),
        lambda port: port.properties(7),
    ]
    for port, read in zip(ports, reads, strict=True):
        with pytest.raises(StorageUnavailableError):
            read(port)
