"""Stores, files and readers in trouble."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.diagnostics.findings import Code
from tests.desk.desk import Desk, kind
from tests.support.consumers import leave
from tests.support.maintenance import age, numbers
from tests.support.s3 import S3Server, s3_server
from tests.support.sparkstream import orders
from tests.support.stores import free_endpoint, hanging_store

WEEK = 7 * 24 * 3600
FOREIGN = 1_000_000
"""From this id on, rows are another tool's; it takes them back before the desk counts."""


def take_back(desk: Desk) -> None:
    lance.dataset(desk.uri).delete(f"id >= {FOREIGN}")


@kind(
    "Lance's own auto-cleanup was switched on", Code.FOREIGN_CLEANUP, ends="`resolve auto-cleanup`"
)
def test_foreign_cleanup(desk: Desk) -> None:
    settings = {"lance.auto_cleanup.interval": "20", "lance.auto_cleanup.older_than": "14days"}
    lance.dataset(desk.uri).update_config(settings)
    desk.follow(desk.found())
    desk.expect()


@kind("Killed tasks left data files behind", Code.ORPHANED_FILES, ends="`cleanup`")
def test_orphaned_files(desk: Desk) -> None:
    dataset = lance.dataset(desk.uri)
    left = lance.fragment.write_fragments(orders(FOREIGN, 5), dataset)[0].files[0].path
    path, then = Path(desk.uri, "data", left), time.time() - WEEK - 3600
    os.utime(path, (then, then))
    found = desk.found()
    assert "1 of them are older than 7 d" in found["summary"]
    desk.follow(found)
    assert not path.exists()
    desk.expect()


@kind("Every row came in a fragment of its own", Code.SMALL_FRAGMENTS, ends="`optimize`")
def test_small_fragments(desk: Desk) -> None:
    rows = orders(FOREIGN, 510)
    lance.write_dataset(rows, desk.uri, mode="append", max_rows_per_file=1, max_rows_per_group=1)
    desk.follow(desk.found())
    assert len(lance.dataset(desk.uri).get_fragments()) < 10
    take_back(desk)
    desk.expect()


@kind("An index was not brought up to date", Code.INDEX_BEHIND, ends="`optimize`")
def test_index_behind(desk: Desk) -> None:
    lance.dataset(desk.uri).create_scalar_index("id", "BTREE")
    many = orders(FOREIGN, 1_000_001)
    lance.write_dataset(many, desk.uri, mode="append")
    found = desk.found()
    assert "id_idx lacks 1,000,001" in found["summary"]
    desk.follow(found)
    take_back(desk)
    desk.expect()


@kind(
    "A consumer is far behind, and is not to run again",
    Code.CONSUMER_LAGS,
    ends="`forget-consumer`",
)
def test_consumer_lags(desk: Desk) -> None:
    age(desk.uri, 7200)
    leave(desk.uri, 2, ago=60)
    desk.follow(desk.found(), "not to run again")
    desk.expect()


@kind("A consumer has not been heard of for a week", Code.CONSUMER_GONE, ends="`forget-consumer`")
def test_consumer_gone(desk: Desk) -> None:
    leave(desk.uri, numbers(desk.uri)[-1], ago=WEEK + 3600)
    desk.follow(desk.found(), "not to run again")
    desk.expect()


@kind(
    "A cleanup took versions that a consumer had not read",
    Code.CONSUMER_AT_RISK,
    ends="`forget-consumer`, then the consumer starts again",
)
def test_consumer_lost_its_versions(desk: Desk) -> None:
    leave(desk.uri, 3, ago=WEEK + 3600)
    lance.dataset(desk.uri).cleanup_old_versions(versions=[3, 4])
    found = desk.found()
    assert "2 of the versions from 3 on are gone" in found["summary"]
    desk.follow(found)
    desk.expect()


@kind("Somebody removed all config keys", Code.WATERMARK_BEHIND, ends="`resolve config`")
def test_removed_config_keys(desk: Desk) -> None:
    dataset = lance.dataset(desk.uri)
    dataset.delete_config_keys(list(dataset.config()))
    found = desk.found()
    assert "epoch 3 is committed" in found["summary"]
    desk.follow(found)
    desk.expect()


# ------------------------------------------------------------------------------- a store of objects


@pytest.fixture
def lake(desk: Desk, tmp_path: Path) -> Iterator[tuple[S3Server, Callable[..., None]]]:
    """Let the desk's stream write into a store of objects; return it, and how it is reached."""
    with s3_server() as server:
        options = tmp_path / "options.json"

        def reach(**changes: str) -> None:
            options.write_text(json.dumps(server.options() | changes))

        reach()
        desk.arguments = ("--storage-options-file", str(options), "--timeout", "8")
        desk.uri, desk.storage_options = server.uri("orders.lance"), server.options()
        desk.sink = {
            "uri": desk.uri,
            "storageOptions": server.options(),
            "checkpointLocation": str(tmp_path / "checkpoint"),
        }
        desk.start_well()
        yield server, reach


@contextmanager
def said(desk: Desk, *parts: str) -> Iterator[None]:
    """Assert that a check cannot read the store, and says so in one sentence."""
    error = desk.refused()
    sentence = error["message"]
    for part in parts:
        assert part in sentence, sentence
    assert "\n" not in sentence
    assert "<" not in sentence
    yield


@kind("The store cannot be reached", "StorageUnavailableError", ends="the endpoint is corrected")
def test_unreachable_store(desk: Desk, lake: tuple[S3Server, Callable[..., None]]) -> None:
    lake[1](aws_endpoint=free_endpoint())
    with said(desk, "nothing listens at http://127.0.0.1", "check the endpoint"):
        lake[1]()
    desk.expect()


@kind("The store hangs", "StorageUnavailableError", ends="the store answers again")
def test_hanging_store(desk: Desk, lake: tuple[S3Server, Callable[..., None]]) -> None:
    with hanging_store() as endpoint:
        lake[1](aws_endpoint=endpoint)
        with said(desk, "did not answer within 8 s", "check the store and the network"):
            lake[1]()
    desk.expect()


@kind("The bucket's name is wrong", "DatasetNotFoundError", ends="the name is corrected")
def test_unknown_bucket(desk: Desk, lake: tuple[S3Server, Callable[..., None]]) -> None:
    right, desk.uri = desk.uri, desk.uri.replace("/lake/", "/lakes/")
    with said(desk, "there is no such bucket", "check the bucket's name"):
        desk.uri = right
    desk.expect()


@kind("The store does not accept the key", "StorageUnavailableError", ends="the key is corrected")
def test_denied_by_the_store(desk: Desk, lake: tuple[S3Server, Callable[..., None]]) -> None:
    with s3_server(checks_keys=True) as strict:
        lake[1](aws_endpoint=strict.endpoint)
        with said(desk, "does not accept these credentials", "check the credentials"):
            lake[1]()
    desk.expect()


@kind(
    "A file lies where the dataset's folder should be",
    "StorageUnavailableError",
    ends="it is moved",
)
def test_file_in_place_of_a_folder(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "mount").write_text("")
    right, desk.uri = desk.uri, str(tmp_path / "mount" / "orders.lance")
    with said(desk, "a part of the path is a file and no folder"):
        desk.uri = right
    desk.expect()
