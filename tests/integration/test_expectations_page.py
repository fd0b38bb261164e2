"""What the page about expectations tells to type, typed as it is: real Spark, real Lance."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.spark.sink import LanceSink
from tests.support.cli import typed
from tests.support.sparkstream import Stream, orders

PAGE = Path(__file__).parents[2] / "docs/how-to/expectations.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_can_be_typed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = Stream(spark, tmp_path / "data")
    (code,) = blocks("python")
    code = code.replace("/data/lance/orders.lance", stream.uri)
    code = code.replace("/data/checkpoints/orders", stream.checkpoint)
    stream.create()
    stream.add(orders(0, 6))
    df = stream.read().withColumn("amount", F.expr("if(id % 3 = 1, -amount, amount)"))
    sink: LanceSink = eval(code.replace('"drop"', '"quarantine"'), {"LanceSink": LanceSink})
    sink.start(df, availableNow=True).awaitTermination()
    sink.release()
    assert stream.epochs("orders")[0].checks.quarantined == 3  # 0 is not above 0

    commands = [
        shlex.split(line.replace("/data/lance/orders.lance", stream.uri))[1:]
        for block in blocks("bash")
        for line in block.splitlines()
    ]
    listed, exported, planned, fed = commands
    shown = typed(*listed)
    assert shown.status == 0
    assert re.search(r"expectation positive +3 +3 +0 +0", shown.out), shown.out
    document = typed(*listed, "--output", "json", "--reason", "expectation positive").document
    assert [row["state"] for row in document["newest"]] == ["open"] * 3

    assert typed(*exported).status == 0
    assert typed(*exported).status == 2  # it does not overwrite
    file = tmp_path / exported[-1]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["row"]["amount"] = 1.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    plan = typed(*planned)
    assert plan.status == 2
    assert "write 3 mended rows" in plan.out
    assert stream.dataset.count_rows() == 3
    assert "3 rows written" in typed(*fed).out
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(6))
    again = typed(*fed)
    assert (again.status, stream.dataset.count_rows()) == (0, 6)
    assert "3 rows of the file are in the table already" in again.out
    assert "3 +0 +0" in re.sub(" +", " +", typed(*listed).out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--yes",), "belong to --feed"),
        (("--export", "a", "--feed", "b"), "exclude each other"),
        (("--feed", "nothing.jsonl"), "has no quarantine"),
    ],
)
def test_a_command_that_cannot_be_run_says_why(
    spark: SparkSession, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    stream.add(orders(0, 6))
    stream.run()
    ran = typed("quarantine", stream.uri, *words)
    assert (ran.status, said in ran.err) == (2, True), ran.err
