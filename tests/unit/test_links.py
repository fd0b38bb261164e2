"""The extra links: browsers get http and https, and never a credential."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from airflow_provider_lance.links.lance import dataset_url, spark_ui_url, stream_url


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://host:4040", "http://host:4040"),
        ("https://proxy/proxy/app-1/", "https://proxy/proxy/app-1/"),
        ("http://user:secret@host:4040/jobs?token=x#y", "http://host:4040/jobs"),
        ("http://[::1]:4040", "http://[::1]:4040"),
        ("javascript:alert(1)", ""),
        ("http://host:port", ""),
        ("host:4040", ""),
        ("", ""),
        (None, ""),
        (4040, ""),
    ],
)
def test_spark_ui_link_is_the_address_of_the_driver_if_it_is_a_url(
    address: object, expected: str
) -> None:
    assert spark_ui_url(address) == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/a b.lance", ""),
        ("file:/data/a.lance", ""),
        ("file:///data/a.lance", ""),
        ("s3://b/w/a.lance", "https://console.aws.amazon.com/s3/buckets/b?prefix=w/a.lance/"),
        ("gs://b/a.lance", "https://console.cloud.google.com/storage/browser/b/a.lance"),
        (
            "abfss://c@account.dfs.core.windows.net/a.lance",
            "https://account.dfs.core.windows.net/c/a.lance",
        ),
        ("abfs://c/a.lance", ""),
        ("hdfs://name/a.lance", ""),
        ("a.lance", ""),
    ],
)
def test_dataset_link_is_the_console_of_its_store(uri: str, expected: str) -> None:
    assert dataset_url(uri) == expected


def test_a_store_of_ones_own_has_no_console() -> None:
    assert dataset_url("s3://b/a.lance", "http://minio:9000") == ""


@pytest.mark.parametrize("uri", ["/data/a&b=ü.lance", "s3://b/a.lance"])
@pytest.mark.parametrize("conn_id", ["minio", None])
def test_a_streams_page_is_named_without_airflows_own_address(
    uri: str, conn_id: str | None
) -> None:
    address = stream_url(uri, "orders", conn_id)
    path, _, query = address.partition("?")
    assert path == "lance/stream"
    expected = {"uri": [uri], "query": ["orders"], "conn_id": [conn_id or ""]}
    assert parse_qs(query, keep_blank_values=True) == expected
