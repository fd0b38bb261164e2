"""Another tool, or a hand, has changed the config that a restart relies on."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.support.cli import typed
from tests.support.processes import finish, python
from tests.support.sparkstream import Stream, orders, spec, write_spec
from tests.support.wreck import ROWS, Wreck

EPOCHS, ROWS_IN_FILE = 3, 40


def type_what_it_says(error: ProtocolVersionError, uri: str) -> None:
    """Type the command that a message names, for this dataset."""
    said = re.search(r"lance-stream (resolve config), .* query (\S+)$", str(error))
    assert said, error
    ran = typed(*said[1].split(), uri, said[2], "--yes")
    assert ran.status == 0, ran.err


def test_history_folded_above_the_newest_version_does_not_append_an_epoch_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    for n in range(EPOCHS):
        stream.add(orders(n * ROWS_IN_FILE, ROWS_IN_FILE))
    path = write_spec(tmp_path / "spec.json", spec(stream))
    # Killed after the commit of epoch 1 and before Spark logged it: epoch 1 is in flight.
    driver = python("-m", "tests.support.killed_job", str(path), Failpoint.COMMIT_LANDED.value, "2")
    status, output = finish(driver)
    assert status == -signal.SIGKILL, output
    assert stream.table().num_rows == 2 * ROWS_IN_FILE
    stream.dataset.update_config({key("lastEpochVersion", "q"): "999"})
    with pytest.raises(ProtocolVersionError, match="lastEpochVersion") as caught:
        stream.run()
    assert stream.table().num_rows == 2 * ROWS_IN_FILE
    type_what_it_says(caught.value, stream.uri)
    stream.run()
    ids = Counter(stream.table().column("id").to_pylist())
    assert ids == Counter(range(EPOCHS * ROWS_IN_FILE))


def owner_with(word: str, value: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | {word: value})


def to(text: str) -> Callable[[str], str]:
    return lambda _: text


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("lastEpochVersion", to("999")),
        ("lastEpochVersion", to("-1")),
        ("lastEpoch", to("-3")),
        ("lastEpoch", to("１")),
        ("lastEpochTime", to("yesterday")),
        ("stop", to("-1")),
        ("owner", owner_with("token", -5)),
        ("owner", owner_with("token", 1.9)),
        ("owner", owner_with("generation", -1)),
        ("owner", owner_with("pid", "4711")),
        ("owner", owner_with("time", 7)),
        ("owner", to("[" * 100_000)),
    ],
)
def test_driver_refuses_broken_config_before_it_writes_and_names_the_repair(
    tmp_path: Path, word: str, change: Callable[[str], str]
) -> None:
    wreck = Wreck(tmp_path)
    wreck.run(2)
    wreck.run(2, unlogged=1)  # the second claim folds; epoch 3 is in flight
    dataset, config_key = lance.dataset(wreck.uri), key(word, wreck.query_id)
    dataset.update_config({config_key: change(dataset.config().get(config_key, ""))})
    before = lance.dataset(wreck.uri).version
    with pytest.raises(ProtocolVersionError, match=re.escape(config_key)) as caught:
        wreck.run(1)
    assert lance.dataset(wreck.uri).version == before, "nothing is written"
    type_what_it_says(caught.value, wreck.uri)
    wreck.run(2)
    assert wreck.ids == Counter(range(5 * ROWS))


PAGE = Path(__file__).parents[2] / "docs/how-to/trouble.md"


def test_command_of_the_trouble_page_repairs_broken_config(tmp_path: Path) -> None:
    section = PAGE.read_text().split("### A value that no version writes")[1].split("\n## ")[0]
    (line,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    wreck = Wreck(tmp_path)
    wreck.run(2, unlogged=1)
    dataset = lance.dataset(wreck.uri)
    wrong = {"lastEpochVersion": "999", "owner": "{"}
    dataset.update_config({key(word, "orders"): text for word, text in wrong.items()})
    words = shlex.split(line.replace("/data/lance/orders.lance", wreck.uri))
    ran = typed(*words[1:])
    assert ran.status == 0, ran.err
    wreck.run(2)
    assert wreck.ids == Counter(range(3 * ROWS))


def test_driver_ignores_keys_and_fields_of_a_later_version(tmp_path: Path) -> None:
    wreck = Wreck(tmp_path)
    wreck.run(2, unlogged=1)
    dataset, owner = lance.dataset(wreck.uri), key("owner", wreck.query_id)
    later = json.loads(dataset.config()[owner]) | {"later": {"deep": [1, None, "x"]}}
    dataset.update_config({owner: json.dumps(later), key("later", wreck.query_id): "{"})
    wreck.run(2)
    assert wreck.ids == Counter(range(3 * ROWS))
