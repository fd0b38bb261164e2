"""A stream that has left little: status and check say the same of it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.diagnostics.traces import find_traces, kept_config
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.supervision.driver_reports import (
    new_launch_id,
    report_location,
    write_heartbeat,
)
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.cli import Ran, python, sleeper, typed
from tests.support.maintenance import make, rows
from tests.support.wreck import ROWS, Wreck


def both(*words: str | Path) -> tuple[Ran, Ran]:
    """Type `status` and `check`, which must end alike and say one sentence."""
    status, check = typed("status", *words), typed("check", *words)
    assert status.status == check.status, status.err + check.err + check.out
    assert status.err == check.err
    return status, check


def test_a_dataset_that_no_stream_has_written(tmp_path: Path) -> None:
    status, check = both(make(tmp_path, 2))
    assert status.status == 2
    assert "no streaming query has left a trace in" in status.err
    assert "name its checkpoint with --checkpoint" in check.err
    document = typed("check", tmp_path / "t.lance", "-o", "json").document
    assert (document["findings"], document["error"]["exit"]) == ([], 2)


def test_a_finding_about_such_a_dataset_counts_nevertheless(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    lance.dataset(uri).update_config({"lance.auto_cleanup.interval": "20"})
    assert typed("check", uri, "--fail-on", "warning").status == 1


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Run a driver that has committed nothing yet; return its dataset and checkpoint."""
    uri, checkpoint = str(tmp_path / "orders.lance"), tmp_path / "checkpoint"
    lance.write_dataset(rows(0, 0), uri)
    with sleeper() as process:
        heartbeat: dict[str, Any] = {
            "launchId": new_launch_id(),
            "queryId": "orders",
            "time": utc_now(),
            "state": "running",
            "driver": {**ProcessIdentity.of(process.pid).to_json(), "token": None},
            "sink": {"uri": uri, "watermark": -1},
        }
        files = open_files(report_location(str(checkpoint)))
        write_heartbeat(files, heartbeat["launchId"], heartbeat)
        yield uri, checkpoint


def test_a_heartbeat_beside_the_checkpoint_is_a_trace(waiting: tuple[str, Path]) -> None:
    uri, checkpoint = waiting
    assert both(uri)[0].status == 2, "nothing leads to the checkpoint"
    status, check = both(uri, "--checkpoint", checkpoint)
    assert status.status == 0
    assert "no epoch committed yet" in status.out
    assert "LS000" in check.out
    assert typed("watch", uri, "--checkpoint", checkpoint, "--count", "1").status == 0


def test_a_heartbeat_of_another_dataset_is_no_trace(waiting: tuple[str, Path]) -> None:
    _, checkpoint = waiting
    other = str(checkpoint.parent / "customers.lance")
    lance.write_dataset(rows(0, 0), other)
    assert both(other, "--checkpoint", checkpoint)[0].status == 2


# ----------------------------------------------------------------------- removed keys of the config


def remove_keys(wreck: Wreck) -> None:
    dataset = lance.dataset(wreck.uri)
    dataset.delete_config_keys(list(dataset.config()))


@pytest.fixture
def wreck(tmp_path: Path) -> Wreck:
    """Return a query of three epochs whose config keys somebody has removed."""
    wreck = Wreck(tmp_path)
    wreck.run(3, unlogged=1)
    remove_keys(wreck)
    return wreck


def test_removed_keys_are_put_back_by_what_the_check_prints(wreck: Wreck) -> None:
    before = open_dataset(wreck.uri).at(5)
    assert before
    status, check = both(wreck.uri)
    assert status.status == 1
    assert "LS203 error: Version 6 of" in status.out
    assert "version 5 still has them, and epoch 2 is committed" in check.out
    report = typed("check", wreck.uri, "-o", "json").document
    [finding] = report["findings"]
    words = ["resolve", "config", wreck.uri, "orders", "--yes", "--checkpoint", wreck.checkpoint]
    assert finding["command"] == shlex.join(["lance-stream", *map(str, words)])
    ran = typed(*words, "-o", "json")
    assert (ran.status, ran.document["done"]) == (0, True)
    assert dict(open_dataset(wreck.uri).config) == dict(before.config)
    wreck.run(2)
    assert wreck.ids == dict.fromkeys(range(4 * ROWS), 1)
    assert typed("resolve", "config", wreck.uri, "orders", "--yes").out == (
        "The config has the query's owner.\n"
    )


def test_others_write_on_after_the_removal(wreck: Wreck) -> None:
    lance.dataset(wreck.uri).optimize.compact_files()
    lance.dataset(wreck.uri).update_config({"a": "b"})
    kept = kept_config(open_dataset(wreck.uri), "orders")
    assert kept
    assert (kept.version, kept.removed_in, kept.epoch) == (5, 6, 2)


def test_a_version_without_the_keys_is_made_the_newest_again(wreck: Wreck) -> None:
    lance.dataset(wreck.uri, version=3).restore()
    lance.dataset(wreck.uri, version=6).restore()
    kept = kept_config(open_dataset(wreck.uri), "orders")
    assert kept
    assert (kept.version, kept.removed_in, kept.epoch) == (5, 6, 2)


def test_nothing_is_put_back_over_rows_that_are_gone(tmp_path: Path) -> None:
    wreck = Wreck(tmp_path)
    wreck.run(3)
    empty = lance.dataset(wreck.uri).schema.empty_table()
    dataset = lance.dataset(wreck.uri, version=1)
    dataset.restore()
    assert kept_config(open_dataset(wreck.uri), "orders") is None, "from before the query began"
    lance.dataset(wreck.uri, version=5).restore()
    remove_keys(wreck)
    lance.write_dataset(empty, wreck.uri, mode="overwrite")
    assert kept_config(open_dataset(wreck.uri), "orders") is None, "its rows were replaced"
    ran = typed("resolve", "config", wreck.uri, "orders", "--yes")
    assert (ran.status, "nothing is put back" in ran.err) == (1, True)


def test_nothing_is_put_back_where_a_version_is_missing(wreck: Wreck) -> None:
    lance.dataset(wreck.uri).update_config({"a": "b"})
    lance.dataset(wreck.uri).cleanup_old_versions(versions=[6])
    assert kept_config(open_dataset(wreck.uri), "orders") is None
    assert find_traces(open_dataset(wreck.uri)) == ["orders"]


# ----------------------------------------------------------------------------- a refused checkpoint

AS_NOBODY = """
import os, sys
import airflow_provider_lance.cli.check, lance, pyarrow.fs
from airflow_provider_lance.cli.main import main
os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_checkpoint_that_this_user_may_not_read(tmp_path: Path) -> None:
    wreck = Wreck(tmp_path)
    wreck.run(2)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    wreck.checkpoint.chmod(0o700)
    ran = python("-c", AS_NOBODY, "check", wreck.uri, "--no-orphans", "-o", "json")
    document = json.loads(ran.out)
    [found] = [each for each in document["findings"] if each["code"] == "LS304"]
    assert "this user has no permission (user id 65534); let the user" in found["summary"]
    assert "A driver of the same user cannot read it either" in found["cause"]
