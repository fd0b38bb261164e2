"""A panic in Lance, which is no ``Exception``, becomes an error of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.cli.output import Exit
from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    StorageUnavailableError,
)
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.lance_errors import is_panic
from airflow_provider_lance.protocol.port import Append, Configure, Upsert
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.triggers.threads import Pool, in_thread

TEXTS = pa.schema([("v", pa.list_(pa.string(), 2))])
"""What Lance 14.0.2 makes a dataset of, and panics at when rows come."""
ROWS = pa.table({"v": pa.array([["a", "b"]], TEXTS[0].type)})
NUMBERS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "table.lance")
    lance.write_dataset(NUMBERS, uri)
    return uri


@pytest.fixture
def panic(tmp_path: Path) -> BaseException:
    """Return a panic of Lance's own making."""
    dataset = lance.write_dataset(TEXTS.empty_table(), str(tmp_path / "texts.lance"))
    try:
        write_fragments(ROWS, dataset)
    except BaseException as error:
        if is_panic(error) and not isinstance(error, Exception):
            return error
    raise AssertionError("Lance writes vectors of texts by now: find another panic")


@pytest.fixture
def raising(panic: BaseException, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    """Return a function that makes a name of pylance's panic."""

    def fail(*given: Any, **named: Any) -> Any:
        raise type(panic)("index out of bounds")

    return lambda owner, name: monkeypatch.setattr(owner, name, fail)


def test_panic_while_rows_are_written_is_named(tmp_path: Path) -> None:
    uri = str(tmp_path / "texts.lance")
    dataset = lance.write_dataset(TEXTS.empty_table(), uri)
    task = WriteTask(uri, "run", TEXTS, 0, 1000)
    with pytest.raises(StorageUnavailableError, match=f"{uri}.*Lance panicked: compute_stat"):
        task.write(ROWS.to_reader(), dataset)
    with pytest.raises(StorageUnavailableError, match="Lance panicked: compute_stat"):
        list(task(iter(ROWS.to_batches())))


@pytest.mark.parametrize(
    "change",
    [Append([]), Configure({"test.key": "1"})],
    ids=["append", "configure"],
)
def test_panic_in_a_commit_leaves_its_outcome_unknown(
    uri: str, raising: Callable[[Any, str], None], change: Append | Configure
) -> None:
    port = open_dataset(uri)
    raising(lance.LanceDataset, "commit")
    with pytest.raises(CommitStateUnknownError, match=r"PanicException: index out of bounds"):
        port.commit(change)


READS: dict[str, tuple[str, Callable[[LanceDatasetPort], Any]]] = {
    "latest": ("checkout_version", lambda port: port.latest()),
    "properties": ("read_transaction", lambda port: port.properties(1)),
    "upsert": ("merge_insert", lambda port: port.commit(Upsert([], NUMBERS, ("id",)))),
    "maintain": ("get_fragments", lambda port: maintain(port, MaintenanceOptions())),
}


@pytest.mark.parametrize("read", READS)
def test_panic_in_a_read_is_named(uri: str, raising: Callable[[Any, str], None], read: str) -> None:
    port = open_dataset(uri)
    name, act = READS[read]
    raising(lance.LanceDataset, name)
    with pytest.raises(StorageUnavailableError, match="Lance panicked on .*table.lance: index out"):
        act(port)


def test_panic_while_a_dataset_is_opened_is_named(
    uri: str, raising: Callable[[Any, str], None]
) -> None:
    raising(lance, "dataset")
    with pytest.raises(StorageUnavailableError, match="Lance panicked on .*table.lance: index out"):
        open_dataset(uri)


def test_panic_in_a_thread_of_a_trigger_is_an_error_that_it_survives(panic: BaseException) -> None:
    def work() -> None:
        raise panic

    with pytest.raises(StorageUnavailableError, match="Lance panicked"):
        asyncio.run(in_thread(Pool.LOOKS, work))


def test_panic_in_a_command_is_one_message_and_an_exit_status(
    uri: str, raising: Callable[[Any, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    raising(lance.LanceDataset, "config")
    assert main(["status", uri]) == Exit.UNKNOWN
    told = capsys.readouterr().err
    assert told.startswith("error: Lance panicked ")
    assert "index out of bounds" in told


def test_base_exception_that_is_no_panic_passes_unchanged(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*given: Any, **named: Any) -> Any:
        raise SystemExit(7)

    port = open_dataset(uri)
    monkeypatch.setattr(lance.LanceDataset, "commit", end)
    with pytest.raises(SystemExit):
        port.commit(Append([]))
