"""Lance's caches are bounded in all that this package opens, and in every handle made of it."""

from __future__ import annotations

import ast
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import airflow_provider_lance
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.dataset import (
    CACHE_BYTES,
    LOOK_CACHE_BYTES,
    LanceDatasetPort,
    open_dataset,
)
from airflow_provider_lance.protocol.port import Append, Configure

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
FRAGMENTS = 2500
PACKAGE = Path(airflow_provider_lance.__file__).parent


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset whose manifest alone takes a megabyte of a cache."""
    uri = str(tmp_path_factory.mktemp("large") / "table.lance")
    dataset = lance.write_dataset(ROWS, uri)
    (fragment,) = write_fragments(ROWS, dataset)
    open_dataset(uri).commit(Append([fragment] * FRAGMENTS))
    return uri


def commit_often(port: LanceDatasetPort, times: int) -> LanceDatasetPort:
    for number in range(times):
        port = port.commit(Configure({"test.number": str(number)}))
    return port


def test_caches_of_a_writer_stay_below_their_bound_after_many_commits(uri: str) -> None:
    port = commit_often(open_dataset(uri), 100)
    assert port.dataset.session().size_bytes() <= CACHE_BYTES // 8


def test_caches_of_a_writer_stay_below_the_bound_that_was_asked_for(uri: str) -> None:
    port = commit_often(open_dataset(uri, cache_bytes=16 * 1024 * 1024), 20)
    assert port.dataset.session().size_bytes() <= 2 * 1024 * 1024


def test_caches_of_a_looker_stay_below_their_bound_after_many_versions(uri: str) -> None:
    looker = LanceHook(None).open(uri)
    writer = open_dataset(uri)
    for _ in range(20):
        writer = commit_often(writer, 1)
        looker = looker.latest()
        looker.properties(looker.version)
    assert looker.version == writer.version
    assert looker.dataset.session().size_bytes() <= LOOK_CACHE_BYTES


def test_handles_made_of_a_handle_keep_its_session(uri: str) -> None:
    port = open_dataset(uri)
    session = port.dataset.session()
    committed = commit_often(port, 1)
    committed.properties(committed.version)
    assert committed._history is not None
    for handle in (
        committed.dataset,
        committed.latest().dataset,
        committed.dataset.checkout_version(1),
        committed._history,
    ):
        assert handle.session().is_same_as(session)


def test_handles_opened_one_by_one_share_no_session(uri: str) -> None:
    assert not open_dataset(uri).dataset.session().is_same_as(open_dataset(uri).dataset.session())


def test_recreated_dataset_does_not_reuse_cached_transactions(
    tmp_path: Path,
) -> None:
    uri = str(tmp_path / "table.lance")
    lance.write_dataset(ROWS, uri, transaction_properties={"which": "first"})
    assert (open_dataset(uri).properties(1) or {}).get("which") == "first"
    lance.dataset(uri).delete("true")
    for file in sorted(Path(uri).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    lance.write_dataset(ROWS, uri, transaction_properties={"which": "second"})
    assert (open_dataset(uri).properties(1) or {}).get("which") == "second"


def opening_calls() -> list[tuple[str, ast.Call]]:
    """Return every call that opens or makes a dataset by its URI, and where it is."""
    names = ("lance.dataset", "lance.write_dataset", "lance.LanceDataset", "LanceDataset")
    return [
        (f"{file.relative_to(PACKAGE)}:{node.lineno}", node)
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]


def test_every_call_that_opens_a_dataset_gives_it_a_bounded_session() -> None:
    calls = opening_calls()
    assert len(calls) >= 4
    for where, call in calls:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert given.get("session", "").startswith("lance_session("), where
