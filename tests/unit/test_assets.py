"""Asset URIs of scheme lance, through Airflow's own Asset."""

from __future__ import annotations

import urllib.parse
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider_lance.assets.lance import (
    asset_uri,
    create_asset,
    lance_asset,
    sanitize_uri,
)
from airflow_provider_lance.exceptions import SpecError

from .conftest import SECRET

DATASETS = [
    ("/data/x.lance", "lance:///data/x.lance"),
    ("/data//./x.lance/", "lance:///data/x.lance"),
    ("/data/a b#1?.lance", "lance:///data/a%20b%231%3F.lance"),
    ("/data/100%.lance", "lance:///data/100%25.lance"),
    ("/data/größe.lance", "lance:///data/gr%C3%B6%C3%9Fe.lance"),
    ("file:///data/x.lance", "lance:///data/x.lance"),
    ("file-object-store:///data/x.lance", "lance:///data/x.lance"),
    ("s3://bucket/a/x.lance", "lance://s3/bucket/a/x.lance"),
    ("S3A://Bucket/x.lance/", "lance://s3/Bucket/x.lance"),
    ("s3n://bucket/x.lance", "lance://s3/bucket/x.lance"),
    ("s3+ddb://bucket/x.lance?ddbTableName=commits", "lance://s3/bucket/x.lance"),
    ("gs://bucket/x.lance", "lance://gs/bucket/x.lance"),
    ("az://container/x.lance", "lance://az/container/x.lance"),
    (
        "abfss://box@account.dfs.core.windows.net/x.lance",
        "lance://abfss/box@account.dfs.core.windows.net/x.lance",
    ),
    ("lance://s3/bucket/x.lance", "lance://s3/bucket/x.lance"),
    ("lance:///data/x.lance", "lance:///data/x.lance"),
]


@pytest.mark.parametrize(("dataset", "uri"), DATASETS)
def test_a_dataset_has_one_asset(dataset: str, uri: str) -> None:
    assert asset_uri(dataset) == uri
    made = lance_asset(dataset)
    assert (made.uri, made.name) == (uri, uri)
    assert Asset(uri=made.uri).uri == uri, "Airflow sanitises again wherever it reads one"
    assert made.normalized_uri == uri
    assert asset_uri(uri) == uri


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("lance:///data//x.lance//", "lance:///data/x.lance"),
        ("LANCE://S3A/bucket/x.lance/?b=2&a=1#part", "lance://s3/bucket/x.lance"),
    ],
)
def test_asset_uri_is_normalized(given: str, uri: str) -> None:
    assert Asset(uri=given).uri == uri


@pytest.mark.parametrize(
    "path", ["", "/", "//", "/.", "/a/../b", "/..", "/a/%2e%2E/b", "/a%2f..%2fb"]
)
def test_a_path_that_names_no_dataset_is_refused(path: str) -> None:
    for store in ("", "s3"):
        with pytest.raises(ValueError, match=r"path"):
            Asset(uri=f"lance://{store}{path}")
        with pytest.raises(SpecError):
            asset_uri(f"lance://{store}{path}")


@pytest.mark.parametrize("uri", ["flights.lance", "folder/flights.lance", "", "  ", "./x"])
def test_a_relative_name_is_refused(uri: str) -> None:
    with pytest.raises(SpecError, match="is relative: write 's3://bucket/table.lance'"):
        lance_asset(uri)


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://key:{SECRET}@bucket/x.lance",
        f"s3://bucket/x.lance?secret={SECRET}#{SECRET}",
        f"abfss://box:{SECRET}@account.dfs.core.windows.net/x.lance",
        f"lance://user:{SECRET}@s3/bucket/x.lance",
        f"lance://s3/key:{SECRET}@bucket/x.lance",
    ],
)
def test_asset_uri_has_no_secret(uri: str) -> None:
    made = lance_asset(uri)
    assert SECRET not in f"{made.uri} {made.name}"
    assert made.uri.endswith("/x.lance")
    assert SECRET not in urllib.parse.urlunsplit(sanitize_uri(urlsplit(asset_uri(uri))))


def test_airflow_drops_a_secret_too() -> None:
    with pytest.warns(UserWarning, match="password"):
        made = Asset(name="flights", uri=f"lance://user:{SECRET}@s3/bucket/x.lance")
    assert made.uri == "lance://s3/bucket/x.lance"
    assert Asset(name="x", uri=f"lance://s3/key:{SECRET}@b/x").uri == "lance://s3/b/x"


def test_asset_takes_name_group_and_extra_as_airflows_does() -> None:
    made = lance_asset("/data/x.lance", name="flights", group="lance", extra={"a": 1})
    assert (made.name, made.group, made.extra) == ("flights", "lance", {"a": 1})
    assert made == Asset("flights", "lance:///data/x.lance", group="lance", extra={"a": 1})


def test_airflow_finds_handler_and_factory() -> None:
    manager = ProvidersManagerTaskRuntime()
    assert manager.asset_uri_handlers["lance"] is sanitize_uri
    assert manager.asset_factories["lance"] is create_asset
    made = create_asset(uri="s3a://bucket/x.lance", extra={"a": 1})
    assert (made.uri, made.extra) == ("lance://s3/bucket/x.lance", {"a": 1})
