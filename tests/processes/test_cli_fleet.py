"""Many streams on one command line: one line each, worst first, and none waits for another."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.cli import target
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.cli import QUERY, Stream, python, typed, write_config
from tests.support.maintenance import rows
from tests.support.pages import airflow_of_its_own, register

from .conftest import AddConnection

CLI = ("-m", "airflow_provider_lance.cli")


def stream_in(folder: Path, name: str, *, query: str = "", pid: int | None = None) -> Stream:
    uri = str(folder / f"{name}.lance")
    made = Stream(folder, pid=pid or os.getpid(), uri=uri, name=query or name)
    made.step(2)
    return made


@pytest.fixture
def fleet(tmp_path: Path) -> list[Stream]:
    """Return three streams that run."""
    return [stream_in(tmp_path, name) for name in ("orders", "items", "visits")]


def test_several_datasets_get_a_line_each_worst_first(fleet: list[Stream]) -> None:
    owner = fleet[1].config["spark.lance.streaming.owner.items"]
    port = open_dataset(fleet[1].uri)
    port.dataset.update_config(
        {"spark.lance.streaming.owner.items": re.sub(r'"pid":\d+', '"pid":1', owner)}
    )
    shutil.rmtree(f"{fleet[1].checkpoint}.reports")
    ran = typed("status", *(each.uri for each in fleet))
    heads, first, *others, total = ran.out.splitlines()
    assert heads.split() == ["severity", "code", "state", "query", "sentence"]
    assert re.match(r"error +LS102 +dead +items +", first)
    assert [line.split()[3] for line in others] == ["orders", "visits"]
    assert all(line.startswith("fine ") for line in others)
    command = f"lance-stream check {fleet[1].uri} items"
    assert total == f"1 needs you, 2 fine; what to do about the first: {command}"
    assert ran.status == 1
    assert typed(*command.split()[1:]).status == 1
    document = typed("status", *(each.uri for each in fleet), "-o", "json").document
    assert document["summary"] == {"needYou": 1, "warned": 0, "fine": 2}
    assert {each["queryId"]: each["state"] for each in document["statuses"]}["items"] == "dead"


def test_fifty_queries_of_one_dataset_print_52_lines(tmp_path: Path) -> None:
    uri = str(tmp_path / "wide.lance")
    lance.write_dataset(rows(0, 0), uri)
    for number in range(50):
        Stream(tmp_path, pid=os.getpid(), uri=uri, name=f"query-{number:02}").step()
    for command in ("status", "check"):
        ran = typed(command, uri)
        assert (ran.status, len(ran.out.splitlines())) == (0, 52), command
        assert ran.out.splitlines()[-1] == "50 fine"
    assert len(typed("status", uri, "-v").out.splitlines()) > 500
    assert typed("status", uri, "query-07").out.startswith("running: ")


@pytest.mark.parametrize("step", ["open_dataset", "find_traces"])
def test_a_dataset_that_hangs_gets_a_row_and_delays_no_other(
    fleet: list[Stream], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A store that does not answer is a call that does not return, whatever is asked."""
    call = getattr(target, step)

    def slow(of: Any, *options: Any, **named: Any) -> Any:
        if getattr(of, "uri", of) == fleet[0].uri:
            time.sleep(60)
        return call(of, *options, **named)

    monkeypatch.setattr(target, step, slow)
    began = time.monotonic()
    ran = typed("status", *(each.uri for each in fleet), "--timeout", "3")
    assert time.monotonic() - began < 30
    assert ran.status == 3
    _, first, *others, total = ran.out.splitlines()
    assert re.match(r"unknown +- +no answer +orders\.lance +", first)
    assert "did not answer within 3 s" in first
    assert len(others) == 2
    assert total == "1 needs you, 2 fine"


def test_a_dataset_that_is_not_there_gets_a_row(fleet: list[Stream], tmp_path: Path) -> None:
    words = ("status", fleet[0].uri, f"{tmp_path}/none.lance")
    ran = typed(*words)
    assert ran.status == 2
    assert re.search(r"\nerror +- +unreadable +none\.lance +.*none\.lance", ran.out)
    [error] = typed(*words, "-o", "json").document["errors"]
    assert error["error"]["class"] == "DatasetNotFoundError"


def test_check_of_several_has_their_worst_finding(fleet: list[Stream]) -> None:
    write_config(fleet[0].uri, lastEpoch="99")
    ran = typed("check", *(each.uri for each in fleet))
    assert ran.status == 1
    assert re.match(r"critical +LS206 +running +orders +", ran.out.splitlines()[1])
    assert ran.out.splitlines()[-1].startswith("1 needs you, 2 fine; ")
    document = typed("check", *(each.uri for each in fleet), "-o", "json").document
    assert [each["worst"] for each in document["reports"]] == ["critical", "info", "info"]
    detail = typed("check", *(each.uri for each in fleet), "-v").out
    assert "why: " in detail


def test_a_warning_about_the_dataset_has_a_row(fleet: list[Stream]) -> None:
    open_dataset(fleet[0].uri).dataset.update_config({"lance.auto_cleanup.interval": "20"})
    for command in ("check", "status"):
        ran = typed(command, *(each.uri for each in fleet))
        assert ran.status == 0
        assert re.search(r"^warning +LS401 +dataset +orders\.lance ", ran.out, re.MULTILINE)
        assert ran.out.splitlines()[-1] == "1 warned, 3 fine"


def test_equal_query_ids_are_told_apart_by_their_datasets(tmp_path: Path) -> None:
    uris = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        uris.append(stream_in(tmp_path / name, "t", query=QUERY).uri)
    out = typed("status", *uris).out
    assert all(f"orders in {uri} " in out for uri in uris)


def test_which_words_are_datasets_and_which_is_the_query(fleet: list[Stream]) -> None:
    uri, other = fleet[0].uri, fleet[1].uri
    assert typed("status", uri, "orders").out.startswith("running: ")
    assert typed("status", uri, "--query", "orders").out.startswith("running: ")
    for words in (
        (uri, "orders", other),
        (uri, other, "--query", "orders"),
        (uri, "orders", "--query", "orders"),
        (uri, other, "--checkpoint", "/x"),
        (uri, "--all"),
        (),
        ("--query", "orders"),
    ):
        ran = typed("status", *words)
        assert (ran.status, ran.out) == (2, ""), words
    assert "./items.lance" in typed("status", uri, other, "items.lance").err


def test_all_datasets_below_a_connections_base(
    fleet: list[Stream], tmp_path: Path, add_connection: AddConnection
) -> None:
    lance.write_dataset(rows(0, 1), tmp_path / "no-stream.lance")
    add_connection("lake", {"base_uri": str(tmp_path)}, conn_type="lance")
    ran = typed("status", "--conn-id", "lake")
    assert ran.status == 0, ran.err
    assert [line.split()[3] for line in ran.out.splitlines()[1:-1]] == ["items", "orders", "visits"]
    assert ran.out.splitlines()[-1] == "3 fine, 1 dataset without a stream"
    several = typed("status", "orders.lance", "./items.lance", "--conn-id", "lake")
    assert several.out.splitlines()[-1] == "2 fine"


def test_all_streams_that_airflow_knows(
    fleet: list[Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, items, _ = fleet
    monkeypatch.setenv("AIRFLOW__LANCE__DATASETS", f"{items.uri}#, relative.lance#no-such")
    with airflow_of_its_own(tmp_path):
        register(f"lance://{orders.uri}", {"lance_conn_id": ""})
        ran = typed("status", "--all")
        document = typed("status", "--all", "-o", "json").document
    assert [line.split()[:1] for line in ran.out.splitlines()] == [
        ["severity"],
        ["error"],
        ["fine"],
        ["fine"],
        ["1"],
    ]
    assert "relative.lance" in ran.out.splitlines()[1]
    assert {each["queryId"] for each in document["statuses"]} == {"orders", "items"}
    assert [each["uri"] for each in document["errors"]] == ["relative.lance"]
    assert ran.status == 2


def test_all_without_a_database_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = python(*CLI, "status", "--all", env={"AIRFLOW_HOME": str(tmp_path)})
    assert (ran.status, ran.out) == (3, "")
    assert "error: Airflow's database cannot be read" in ran.err
