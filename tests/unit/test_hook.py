"""LanceHook: what a connection means, and what it opens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.log import redact

from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook

from .conftest import AddConnection


def hook(add_connection: AddConnection, extra: Any = None, **fields: Any) -> LanceHook:
    add_connection("warehouse", conn_type="lance", extra=extra, **fields)
    return LanceHook(lance_conn_id="warehouse")


@pytest.mark.parametrize(
    ("base", "uri", "expected"),
    [
        ("s3://bucket/warehouse", "flights.lance", "s3://bucket/warehouse/flights.lance"),
        ("s3://bucket/warehouse/", "a/./b.lance/", "s3://bucket/warehouse/a/b.lance"),
        ("/data", "a//b.lance", "/data/a/b.lance"),
        ("/data", "/else/where.lance", "/else/where.lance"),
        ("/data", "gs://bucket/x.lance", "gs://bucket/x.lance"),
        (None, "/data/x.lance", "/data/x.lance"),
    ],
)
def test_resolve_joins_a_relative_uri_to_the_base(
    base: str | None, uri: str, expected: str, add_connection: AddConnection
) -> None:
    assert hook(add_connection, {"base_uri": base}).resolve(uri) == expected


@pytest.mark.parametrize("uri", ["../x", "a/../../x", "a/%2e%2e/%2E./x", "..\\x"])
def test_resolve_refuses_to_leave_the_base(uri: str, add_connection: AddConnection) -> None:
    with pytest.raises(SpecError, match=re.escape(repr(uri)) + r".*'\.\.'"):
        hook(add_connection, {"base_uri": "/data"}).resolve(uri)


def test_resolve_needs_a_base_for_a_relative_name(add_connection: AddConnection) -> None:
    with pytest.raises(SpecError, match="'x.lance'.*'warehouse'.*base_uri"):
        hook(add_connection).resolve("x.lance")
    with pytest.raises(SpecError, match="'x.lance'.*base_uri"):
        LanceHook(lance_conn_id=None).resolve("x.lance")
    with pytest.raises(SpecError, match="got ' '"):
        LanceHook(lance_conn_id=None).resolve(" ")


def test_storage_options_from_extra_and_from_login(add_connection: AddConnection) -> None:
    extra = {"storage_options": {"region": "eu-central-1", "allow_http": True, "timeout": 5}}
    found = hook(add_connection, extra, login="who", password="what")
    assert found.storage_options == {
        "region": "eu-central-1",
        "allow_http": "true",
        "timeout": "5",
        "aws_access_key_id": "who",
        "aws_secret_access_key": "what",
    }
    assert found.get_conn().storage_options == found.storage_options


def test_storage_options_may_be_text_and_win_over_login(add_connection: AddConnection) -> None:
    extra = {"storage_options": '{"aws_access_key_id": "named"}'}
    assert hook(add_connection, extra, login="short").storage_options == {
        "aws_access_key_id": "named"
    }


def test_no_connection_means_no_storage_options() -> None:
    assert LanceHook(lance_conn_id=None).storage_options == {}


def test_every_value_but_the_harmless_is_masked(add_connection: AddConnection) -> None:
    options = {"azure_storage_account_key": "k-7f3a9", "AWS_REGION": "mars-west-1"}
    found = hook(add_connection, {"storage_options": options}, login="AKIA-7f3a9")
    line = f"{found.storage_options}"
    assert redact(line) == line.replace("k-7f3a9", "***").replace("AKIA-7f3a9", "***")
    assert "k-7f3a9" not in repr(found.store)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("{base_uri", "extra .*JSON"),
        ({"storage_options": "{region"}, "storage_options .*JSON"),
        ({"storage_options": ["region"]}, "storage_options .*got list"),
        ({"storage_options": {"region": {"a": 1}}}, "'region' .*got dict"),
        ({"base_uri": "data"}, "base_uri must be .*'data'"),
        ({"checkpoint_root": "data"}, "checkpoint_root must be .*'data'"),
    ],
)
def test_an_unreadable_connection_is_one_clear_error(
    extra: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = extra if isinstance(extra, str) else json.dumps(extra)
    connection = json.dumps({"conn_type": "lance", "extra": text})
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", connection)
    with pytest.raises(SpecError, match=f"connection 'warehouse'.*{message}"):
        _ = LanceHook(lance_conn_id="warehouse").store


def test_a_missing_connection_says_how_to_add_it(add_connection: AddConnection) -> None:
    with pytest.raises(SpecError, match="airflow connections add nowhere --conn-type lance"):
        _ = LanceHook(lance_conn_id="nowhere").store


def test_the_default_connection_may_be_missing_for_local_paths_only(
    dataset: str, add_connection: AddConnection
) -> None:
    assert LanceHook().open(dataset).version == 1
    for uri in ("s3://bucket/flights.lance", "flights.lance"):
        with pytest.raises(SpecError, match="airflow connections add lance_default"):
            LanceHook().resolve(uri)
    with pytest.raises(SpecError, match="no connection 'lance_default'.*checkpoint_root"):
        LanceHook().checkpoint_location("flights")
    good, message = LanceHook().test_connection()
    assert not good
    assert "airflow connections add lance_default" in message


def test_a_connection_of_another_type_is_refused(add_connection: AddConnection) -> None:
    add_connection("warehouse", conn_type="aws")
    with pytest.raises(SpecError, match="'warehouse'.*'aws'.*'lance'"):
        LanceHook("warehouse").resolve("flights.lance")


def test_each_query_has_a_checkpoint_below_the_root(add_connection: AddConnection) -> None:
    found = hook(add_connection, {"checkpoint_root": "s3a://bucket/checkpoints/"})
    assert found.checkpoint_location("flights") == "s3a://bucket/checkpoints/flights"
    with pytest.raises(SpecError, match=r"'\.\./other'"):
        found.checkpoint_location("../other")
    with pytest.raises(SpecError, match="'flights.reports'.*'flights'"):
        found.checkpoint_location("flights.reports")
    with pytest.raises(SpecError, match="'warehouse' has no checkpoint_root"):
        hook(add_connection).checkpoint_location("flights")


def test_opens_datasets_and_files(
    tmp_path: Path, dataset: str, add_connection: AddConnection
) -> None:
    found = hook(add_connection, {"base_uri": str(tmp_path)})
    assert found.open("flights.lance").version == 1
    with pytest.raises(DatasetNotFoundError):
        found.open("absent.lance")
    (tmp_path / "note").write_text("hello")
    assert found.files(str(tmp_path)).read("note") == b"hello"


def test_test_connection_lists_the_base_uri(
    tmp_path: Path, dataset: str, add_connection: AddConnection
) -> None:
    assert hook(add_connection, {"base_uri": str(tmp_path)}).test_connection() == (
        True,
        f"{tmp_path} answered: {len(list(tmp_path.iterdir()))} entries, 1 named *.lance",
    )
    (tmp_path / "empty").mkdir()
    good, message = hook(add_connection, {"base_uri": f"{tmp_path}/empty"}).test_connection()
    assert good
    assert "empty folder" in message
    good, message = hook(add_connection, {"base_uri": f"{tmp_path}/absent"}).test_connection()
    assert not good
    assert f"no folder {tmp_path}/absent" in message
    good, message = hook(add_connection, {"base_uri": f"{dataset}/_latest.x/y"}).test_connection()
    assert not good
    assert hook(add_connection).test_connection()[0]
    good, message = hook(add_connection, {"base_uri": "nfs://host/x"}).test_connection()
    assert not good
    assert "cannot open 'nfs://host/x'" in message
    good, message = LanceHook(lance_conn_id="nowhere").test_connection()
    assert not good
    assert message.startswith("SpecError: ")
    assert "airflow connections add nowhere" in message
