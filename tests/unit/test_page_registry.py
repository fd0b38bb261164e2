"""Which datasets the page may look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.sdk.configuration import clear_secrets_backends_cache
from airflow.utils.session import create_session
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.assets.lance import asset_uri
from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.plugins.page.queries import see_dataset
from airflow_provider_lance.plugins.page.registry import (
    RegisteredDataset,
    dataset_uri,
    find,
    hook_of,
    known_datasets,
    merge,
    of_asset,
    of_config,
    of_task,
    queries_of,
)
from tests.support.maintenance import make
from tests.support.pages import airflow_of_its_own, let_stream, register


@pytest.mark.parametrize(
    "uri",
    [
        "/data/orders.lance",
        "/data/with space/100%/ü.lance",
        "s3://bucket/warehouse/orders.lance",
        "gs://bucket/orders.lance",
        "abfss://container@account.dfs.core.windows.net/orders.lance",
    ],
)
def test_an_asset_leads_back_to_its_dataset(uri: str) -> None:
    assert dataset_uri(asset_uri(uri)) == uri


NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_any_local_path_survives_the_way_to_an_asset_and_back(names: list[str]) -> None:
    path = "/" + "/".join(names)
    try:
        made = asset_uri(path)
    except SpecError:
        return  # it leads upwards, or nowhere
    assert asset_uri(dataset_uri(made)) == made


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", []),
        (" , ,", []),
        ("/data/a.lance", [RegisteredDataset("/data/a.lance")]),
        ("s3://b/a.lance/#minio", [RegisteredDataset("s3://b/a.lance", "minio")]),
        (
            "a.lance # minio , /b#",
            [RegisteredDataset("a.lance", "minio"), RegisteredDataset("/b", "")],
        ),
        ("/with#in.lance#minio", [RegisteredDataset("/with#in.lance", "minio")]),
    ],
)
def test_registry_reads_the_option_datasets(text: str, known: list[RegisteredDataset]) -> None:
    assert of_config(text) == known


@pytest.mark.parametrize(
    ("extra", "conn_id"),
    [(None, None), ({}, None), ({"lance_conn_id": "minio"}, "minio"), ({"lance_conn_id": 7}, None)],
)
def test_an_asset_may_name_its_connection(extra: dict[str, Any] | None, conn_id: Any) -> None:
    assert of_asset("lance://s3/b/a.lance", extra) == RegisteredDataset("s3://b/a.lance", conn_id)


def test_entry_with_a_connection_replaces_the_entry_without_one() -> None:
    plain, one, other = (
        RegisteredDataset("/a"),
        RegisteredDataset("/a", "one"),
        RegisteredDataset("/a", "other"),
    )
    assert merge([plain, plain], [plain]) == [plain]
    assert merge([other, plain], [one, plain]) == [one, other]
    assert find([one, other], "/a", None) == one
    assert find([one, other], "/a", "other") == other
    assert find([one, other], "/a", "third") is None
    assert find([one, other], "/b", None) is None


def test_assets_that_are_active_and_the_option_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LANCE__DATASETS", "/data/a.lance#, s3://bucket/b.lance")
    with airflow_of_its_own(tmp_path):
        register("lance:///data/a.lance", {"lance_conn_id": "minio"})
        register("lance://s3/bucket/b.lance")
        register("lance:///data/gone.lance", active=False)
        register("s3://bucket/other.lance")
        register("lancelot://not/ours")
        assert merge(known_datasets()) == [
            RegisteredDataset("/data/a.lance", ""),
            RegisteredDataset("/data/a.lance", "minio"),
            RegisteredDataset("s3://bucket/b.lance"),
        ]


def streams(uri: str, query_id: str = "orders", **fields: Any) -> dict[str, Any]:
    return {"uri": uri, "query_id": query_id, "lance_conn_id": None, **fields}


def test_registry_lists_the_datasets_that_tasks_stream_into(
    tmp_path: Path, add_connection: Any
) -> None:
    add_connection("minio", {"base_uri": "s3://bucket/warehouse"}, conn_type="lance")
    with airflow_of_its_own(tmp_path):
        let_stream("first", streams("/data/a.lance"))
        let_stream("second", streams("orders.lance", lance_conn_id="minio"))
        let_stream("third", streams("nobody.lance", lance_conn_id="gone"))
        let_stream("stale", streams("/data/of-a-dag-that-is-gone.lance"), stale=True)
        let_stream("waits", streams("/data/of-a-sensor.lance"), link="")
        let_stream("strange", {"uri": 7})
        found = known_datasets()
    assert {(each, each.query_id, each.dag_id) for each in found} == {
        (RegisteredDataset("/data/a.lance", ""), "orders", "first"),
        (RegisteredDataset("s3://bucket/warehouse/orders.lance", "minio"), "orders", "second"),
        (RegisteredDataset("nobody.lance", "gone"), "orders", "third"),
    }


def test_a_task_that_names_no_query_is_known_by_its_dataset() -> None:
    unnamed = {"query_id": None, "lance_conn_id": None}
    found = of_task("dag", {"uri": "/data/orders.lance", **unnamed})
    assert found
    assert found.query_id == "orders"
    assert of_task("dag", {"uri": "/data/my orders", **unnamed}) is None


def test_registry_reads_the_newest_run_of_a_task_and_the_active_ones(tmp_path: Path) -> None:
    with airflow_of_its_own(tmp_path):
        let_stream("dag", streams("/over.lance"), run=1, state="success")
        let_stream("dag", streams("/active.lance"), run=2, state="running")
        let_stream("dag", streams("/newest.lance"), run=3, state="failed")
        assert {each.uri for each in known_datasets()} == {"/active.lance", "/newest.lance"}


def test_a_users_xcom_names_no_dataset(tmp_path: Path) -> None:
    with airflow_of_its_own(tmp_path):
        let_stream("dag", streams("/a.lance"), link="lance/stream?uri=/etc&query=q")
        assert [each.uri for each in known_datasets()] == ["/a.lance"]


def test_registry_shows_the_streams_of_readable_dags_only() -> None:
    ours, theirs = (
        RegisteredDataset("/a", "", "one", "ours"),
        RegisteredDataset("/a", "", "two", "theirs"),
    )
    assert merge([ours, theirs], dags={"ours"}) == [RegisteredDataset("/a", "")]
    assert merge([ours, theirs]) == []
    assert queries_of("/a", [ours, theirs], {"ours"}) == {"one"}
    assert queries_of("/a", [ours, theirs], {"ours", "theirs"}) == {"one", "two"}
    assert queries_of("/a", [ours, theirs, RegisteredDataset("/a")], set()) is None, (
        "it is registered"
    )


def test_opens_with_the_default_connection_where_there_is_one(
    tmp_path: Path, add_connection: Any
) -> None:
    uri = make(tmp_path, 1)
    plain = hook_of(RegisteredDataset(uri))
    assert (plain.open(uri).uri, plain.connection_arguments) == (uri, "")
    options = {"region": "eu-central-1"}
    add_connection(
        "lance_default",
        {"base_uri": str(tmp_path), "storage_options": options},
        conn_type="lance",
    )
    found = hook_of(RegisteredDataset("t.lance"))
    assert found.open("t.lance").uri == uri
    assert found.connection_arguments == "--conn-id lance_default"
    assert found.storage_options == options
    without = hook_of(RegisteredDataset(uri, ""))
    assert (without.storage_options, without.connection_arguments) == ({}, "")


def test_connection_in_airflows_database_opens_the_dataset(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    clear_secrets_backends_cache()
    with airflow_of_its_own(tmp_path):
        with create_session() as session:
            extra = json.dumps({"base_uri": str(tmp_path)})
            session.add(Connection(conn_id="stored", conn_type="lance", extra=extra))
        found = hook_of(RegisteredDataset("t.lance", "stored"))
        assert found.open("t.lance").uri == uri
        assert found.connection_arguments == "--conn-id stored"
    clear_secrets_backends_cache()


def test_says_what_is_wrong_with_a_dataset_or_its_connection(
    tmp_path: Path, add_connection: Any
) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"none\.lance"):
        see_dataset(RegisteredDataset(str(tmp_path / "none.lance")))
    with pytest.raises(SpecError, match="no connection 'gone'"):
        see_dataset(RegisteredDataset("/a", "gone"))
    with pytest.raises(SpecError, match="relative"):
        see_dataset(RegisteredDataset("a.lance"))
