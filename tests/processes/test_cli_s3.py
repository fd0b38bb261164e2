"""The commands on a store that is not a disk, with a secret that nobody may see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.port import Configure
from tests.support.cli import QUERY, typed
from tests.support.maintenance import rows
from tests.support.s3 import SECRET, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Start an S3 server with a bucket ``lake``; return the storage options that reach it."""
    with s3_server("lake") as server:
        yield server.options()


def test_every_look_and_the_probe(s3: dict[str, str], tmp_path: Path) -> None:
    uri = "s3://lake/orders.lance"
    lance.write_dataset(rows(0, 10), uri, storage_options=s3)
    open_dataset(uri, s3).commit(Configure({key("lastEpoch", QUERY): "3"}))
    path = tmp_path / "options.json"
    path.write_text(json.dumps(s3))
    reach = ("--storage-options-file", str(path))
    for words in (
        ("status", uri),
        ("check", uri),
        ("epochs", uri),
        ("optimize", uri),
        ("cleanup", uri, "--dry-run"),
        ("stop", uri),
        ("status", uri, "--debug"),
    ):
        ran = typed(*words, *reach)
        assert uri in ran.out, ran.err
        assert SECRET not in ran.out + ran.err
    assert f"lance-stream stop {uri} orders --yes --storage-options-file {path}" in (
        typed("stop", uri, *reach).out
    )
    ran = typed("doctor", uri, "--write-probe", *reach, "-o", "json")
    [writes] = [d for d in ran.document["diagnoses"] if d["name"] == "conditional writes"]
    assert (writes["level"], writes["advice"]) == ("ok", "")
    assert open_files("s3://lake", s3).names("") == ["orders.lance"]
