"""One stream into many datasets with real Spark: both ways of writing, replays, refusals."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.exceptions import (
    RowsRefusedError,
    SchemaMismatchError,
    SideTableError,
    SpecError,
)
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.routes import route_segment
from tests.support.sparkstream import ORDERS, Stream, orders

ROUTED = {"createIfMissing": True, "routeBy": "grp"}


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def route(stream: Stream, value: str) -> pa.Table:
    uri = stream.root / "table.routes" / f"{route_segment(value)}.lance"
    return lance.dataset(str(uri)).to_table().sort_by("id")


def expect(stream: Stream, rows: pa.Table, **options: Any) -> LanceSink:
    sink = stream.run(**ROUTED, **options)
    for value in sorted(set(rows.column("grp").to_pylist())):
        expected = rows.filter(pa.compute.equal(rows.column("grp"), value)).sort_by("id")
        assert route(stream, value).to_pylist() == expected.to_pylist(), value
    return sink


@pytest.mark.parametrize("small", [0, 20_000], ids=["executors", "driver"])
def test_each_value_has_a_dataset_of_its_own(stream: Stream, small: int) -> None:
    for n in range(4):
        stream.add(orders(n * 50, 50))
    sink = expect(stream, orders(0, 200), smallEpochRows=small)
    assert (sink.totals.epochs, sink.totals.rows) == (4, 200)
    home = stream.table().sort_by([("epoch", "ascending"), ("route", "ascending")]).to_pylist()
    assert [(row["epoch"], row["route"], row["rows"]) for row in home[:4]] == [
        (0, "g0", 17),
        (0, "g1", 17),
        (0, "g2", 16),
        (1, "g0", 17),
    ]
    for row in home:
        made = lance.dataset(row["uri"], version=row["version"])
        assert made.count_rows() - made.checkout_version(row["version"] - 1).count_rows() in (
            row["rows"],
            0,
        )


def test_upserts_and_deletes_reach_the_route_of_the_row(stream: Stream) -> None:
    stream.add(orders(0, 30))
    gone = orders(0, 9)
    stream.add(gone.set_column(2, "amount", pa.array([-1.0] * 9)))
    options = {"outputMode": "update", "mergeKeys": ["id"], "deleteWhen": "amount < 0"}
    expect(stream, orders(9, 21), **options)


def test_replay_touches_no_route_that_has_the_epoch(stream: Stream) -> None:
    for n in range(3):
        stream.add(orders(n * 30, 30))
    first = stream.run(**ROUTED)
    assert first.session
    # As if the driver had been killed before the home's last commit.
    stamps = stream.epochs()
    stream.forget_last_commit()
    stream.dataset.checkout_version(stamps[-1].version - 1).restore()
    expect(stream, orders(0, 90))
    again = [row for row in stream.table().to_pylist() if row["epoch"] == 2]
    assert sorted((row["route"], row["rows"]) for row in again) == [
        ("g0", 10),
        ("g1", 10),
        ("g2", 10),
    ]


@pytest.mark.parametrize("value", [None, ""])
def test_row_without_a_route_stops_the_epoch_before_any_commit(
    stream: Stream, value: str | None
) -> None:
    rows = orders(0, 5)
    groups = pa.array([*rows.column("grp").to_pylist()[:4], value])
    stream.add(rows.set_column(1, "grp", groups))
    sink = stream.sink(**ROUTED)
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, RowsRefusedError)
    assert "routeBy" in str(sink.error)
    assert stream.dataset.count_rows() == 0
    assert not (stream.root / "table.routes").exists()


def test_more_routes_than_allowed_are_refused(stream: Stream) -> None:
    stream.add(orders(0, 5))
    sink = stream.sink(**ROUTED, maxRoutes=2)
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert "maxRoutes is 2" in str(sink.error)
    assert not (stream.root / "table.routes").exists()


def test_value_that_one_route_refuses_commits_to_no_route(stream: Stream) -> None:
    options = {"outputMode": "update", "mergeKeys": ["id"]}
    twice = pa.concat_tables([orders(0, 6), orders(2, 1)])  # of g2, the last one
    stream.add(twice)
    sink = stream.sink(**ROUTED, **options)
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, RowsRefusedError)
    assert route(stream, "g0").num_rows == 0


def test_dropped_route_is_refused(stream: Stream) -> None:
    stream.add(orders(0, 5))
    stream.run(**ROUTED)
    (stream.root / "table.routes" / "g1.lance").rename(stream.root / "elsewhere")
    with pytest.raises(SideTableError, match=r"route\.g1.*is missing"):
        stream.run(**ROUTED)


def test_other_template_under_the_same_home_is_refused(stream: Stream) -> None:
    stream.add(orders(0, 5))
    stream.run(**ROUTED)
    elsewhere = str(stream.root / "other" / "{route}.lance")
    with pytest.raises(SideTableError, match="the options give"):
        stream.run(**ROUTED, routeUri=elsewhere)


def test_home_with_other_columns_is_refused(stream: Stream) -> None:
    stream.create(ORDERS)
    with pytest.raises(SchemaMismatchError, match="not the home of a stream with routeBy"):
        stream.run(**ROUTED)


def test_column_with_the_name_of_the_route_is_refused(stream: Stream) -> None:
    stream.ddl = "id BIGINT, grp STRING, `__lance_route` STRING"
    with pytest.raises(SchemaMismatchError, match="rename it"):
        stream.run(**ROUTED)


@pytest.mark.parametrize("column", ["missing", "amount"])
def test_column_that_names_no_route_is_refused(stream: Stream, column: str) -> None:
    with pytest.raises(SpecError, match="routeBy"):
        stream.run(createIfMissing=True, routeBy=column)


class Killed(BaseException):
    """The driver ends between two side effects."""


@pytest.mark.parametrize("small", [0, 20_000], ids=["executors", "driver"])
def test_driver_that_ends_between_two_tables_leaves_them_exact(stream: Stream, small: int) -> None:
    for n in range(3):
        stream.add(orders(n * 30, 30))
    kills = 0
    for ends_at in (6, 14, 17, 21, 9):
        steps = iter(range(ends_at))

        def on_step(step: Failpoint, steps: Any = steps) -> None:
            if next(steps, None) is None:
                raise Killed

        options = {"uri": stream.uri, "queryId": "q", "checkpointLocation": stream.checkpoint}
        sink = LanceSink(**options, **ROUTED, smallEpochRows=small, on_step=on_step)
        query = None
        try:
            query = sink.start(stream.read(), availableNow=True)
            query.awaitTermination()
        except (StreamingQueryException, Killed):
            kills += 1
    assert kills >= 4
    expect(stream, orders(0, 90), smallEpochRows=small)
    home = stream.table()
    assert home.num_rows == 9
    assert sum(home.column("rows").to_pylist()) == 90


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "one-stream-many-tables.md"


def test_page_says_what_works(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    def blocks(language: str) -> list[str]:
        found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        return [each.replace("/data/", f"{stream.root}/") for each in found]

    groups = ["acme", "globex", "US"]
    rows = orders(0, 30)
    stream.ddl = "id BIGINT, tenant STRING, amount DOUBLE"
    for part in (rows.slice(0, 10), rows.slice(10)):
        tenants = pa.array([groups[n % 3] for n in part.column("id").to_pylist()])
        stream.add(part.set_column(1, "tenant", tenants))
    sink_of, parts_of = blocks("python")
    sink = eval(sink_of, {"LanceSink": LanceSink})
    sink.start(stream.read(), availableNow=True).awaitTermination()
    assert sink.release()
    (listed,) = blocks("text")
    folders = {path.name for path in (stream.root / "lance" / "events.routes").iterdir()}
    assert folders == {"acme.lance", "globex.lance", "=u=s.lance"}
    assert all(line.split()[0] in listed for line in listed.splitlines())
    made: dict[str, Any] = {}
    exec(parts_of, made)
    ids = sorted(n for part in made["parts"] for n in part.column("id").to_pylist())
    assert ids == list(range(30))
    capfd.readouterr()
    (commands,) = blocks("bash")
    for command in commands.strip().splitlines():
        said = main(shlex.split(command)[1:])
        assert said == 0, (command, capfd.readouterr())
    shown = capfd.readouterr().out
    assert all(name in shown for name in ("route.acme", "route.=u=s", "route.globex"))
    assert "acme.lance at version" in shown
