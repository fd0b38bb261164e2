"""``@task.lance_stream`` and functions of modules: what is shipped, and what cannot be."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from airflow.sdk import DAG, task

from airflow_provider_lance.decorators.stream import lance_stream_task
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.specification import modules_of
from airflow_provider_lance.operators.stream import LanceStreamOperator

from .conftest import SparkSubmit, TaskInstance, supervised

PLACES = {
    "uri": "/data/orders.lance",
    "checkpoint_location": "/data/checkpoints/orders",
    "lance_conn_id": None,
}
LIMIT = 3


def stream(function: Callable[..., Any], *args: Any, **kwargs: Any) -> LanceStreamOperator:
    """Decorate and call a function in a DAG; return the task."""
    with DAG("streams", schedule=None):
        made = lance_stream_task(function, **PLACES)(*args, **kwargs)
    operator = made.operator
    assert isinstance(operator, LanceStreamOperator)
    return operator


def in_the_driver(task: LanceStreamOperator, folder: Path) -> Any:
    """Call what is shipped as the driver does, in an interpreter that has nothing else."""
    for name, content in task.submission().modules.items():
        (folder / name).write_bytes(content)
    spec = task.job_spec("dag/stream/run/-1#1")
    module, _, name = str(spec.dataframe).partition(":")
    code = f"import json, {module} as m; print(json.dumps(m.{name}('S', {dict(spec.arguments)})))"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(autouse=True)
def spark(spark_submit: SparkSubmit) -> None:
    """Give each test a Spark connection."""


def test_a_function_is_shipped_by_itself(tmp_path: Path) -> None:
    def rows(spark: Any, path: str, *, days: list[int], limit: int = 7) -> Any:
        text = """
of many lines, whatever their indentation
"""
        import posixpath  # what it needs, it imports

        total: int = sum(day for day in days)

        def name(each: str) -> str:
            return posixpath.join(each, f"{total}", str(len(text)))

        return [spark, name(path), limit]

    assert in_the_driver(stream(rows, "/in", days=[1, 2]), tmp_path) == ["S", "/in/3/43", 7]


def test_a_function_with_further_arguments_gets_them(tmp_path: Path) -> None:
    def rows(spark: Any, **options: Any) -> Any:
        return [spark, options]

    made = stream(rows, path="/in", deep={"a": [None, True, 1.5]})
    assert in_the_driver(made, tmp_path) == ["S", {"path": "/in", "deep": {"a": [None, True, 1.5]}}]


def test_airflow_knows_the_decorator(tmp_path: Path) -> None:
    with DAG("streams", schedule=None):

        @task.lance_stream(**PLACES, retries=3)
        def orders(spark: Any, path: str) -> Any:
            return [spark, path]

        made = orders("{{ ds }}").operator
    assert (made.task_id, made.retries, made.query_name) == ("orders", 3, "orders")
    assert {"op_args", "op_kwargs", "uri", "sink_options"} <= set(made.template_fields)
    made.render_template_fields({"ds": "2026-11-22"})
    assert in_the_driver(made, tmp_path) == ["S", "2026-11-22"]


def test_one_function_makes_many_tasks(tmp_path: Path) -> None:
    def rows(spark: Any, path: str) -> Any:
        return [spark, path]

    for path in ("/a", "/b"):
        assert in_the_driver(stream(rows, path), tmp_path) == ["S", path]


def test_the_zip_holds_the_function(spark_submit: SparkSubmit, tmp_path: Path) -> None:
    def rows(spark: Any) -> Any:
        return spark

    task = stream(rows)
    places = supervised(
        uri=str(tmp_path / "x.lance"), checkpoint_location=str(tmp_path / "c"), poll_interval=0.05
    )
    for name, value in places.items():
        setattr(task, name, value)
    spark_submit.orders(summary={}, heartbeats=[{}])
    task.execute({"ti": TaskInstance()})  # type: ignore[typeddict-item]
    argv = spark_submit.notes["argv"]
    with ZipFile(argv[argv.index("--py-files") + 1]) as shipped:
        assert b"def rows(spark" in shipped.read("lance_stream_function.py")
        assert b"lance_stream_function.rows(spark" in shipped.read("lance_stream_entry.py")


def with_a_global(spark: Any) -> Any:
    return spark.readStream.limit(LIMIT)


def with_a_default(spark: Any, limit: int = LIMIT) -> Any:
    return spark.readStream.limit(limit)


def with_an_import_of_the_file(spark: Any) -> Any:
    return [spark, json.dumps({})]


def with_names_deep_inside(spark: Any) -> Any:
    return [[each for each in range(LIMIT) if each] for _ in spark]


def with_no_session(path: str) -> Any:
    return path


def with_any_number(spark: Any, *paths: str) -> Any:
    return [spark, paths]


async def that_waits(spark: Any) -> Any:
    return spark


def that_yields(spark: Any) -> Iterator[Any]:
    yield spark


@functools.cache
def that_is_wrapped(spark: Any) -> Any:
    return spark


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_a_global, "it uses ['LIMIT']"),
        (with_a_default, "it uses ['LIMIT']"),
        (with_an_import_of_the_file, "it uses ['json']"),
        (with_names_deep_inside, "it uses ['LIMIT']"),
        (with_no_session, "must be spark"),
        (with_any_number, "given by name"),
        (that_waits, "wait or yield"),
        (that_yields, "wait or yield"),
        (that_is_wrapped, "defined with def"),
        (lambda spark: spark, "defined with def"),
        (functools.partial(with_no_session, "x"), "defined with def"),
    ],
)
def test_function_that_cannot_be_shipped_is_refused_when_the_dag_is_parsed(
    function: Callable[..., Any], said: str
) -> None:
    with pytest.raises(SpecError) as told:
        stream(function)
    assert said in str(told.value)
    assert "dataframe='module:function'" in str(told.value)


def test_a_closure_cannot_be_shipped() -> None:
    path = "/in"

    def rows(spark: Any) -> Any:
        return spark.readStream.json(path)

    with pytest.raises(SpecError, match=r"cannot ship 'rows'.*it uses \['path'\]"):
        stream(rows)


def test_a_function_without_source_text_cannot_be_shipped() -> None:
    found: dict[str, Any] = {}
    exec("def rows(spark):\n    return spark\n", found)
    with pytest.raises(SpecError, match="source text"):
        stream(found["rows"])


@pytest.mark.parametrize("taken", ["source", "sql", "dataframe", "arguments"])
def test_the_function_is_the_only_source(taken: str) -> None:
    def rows(spark: Any) -> Any:
        return spark

    with (
        DAG("streams", schedule=None),
        pytest.raises(SpecError, match=rf"takes no \['{taken}'\]"),
    ):
        lance_stream_task(rows, **PLACES, **{taken: "x"})()


def test_an_argument_that_json_cannot_hold_is_refused() -> None:
    def rows(spark: Any, path: Any) -> Any:
        return [spark, path]

    with pytest.raises(SpecError, match=r"argument path of 'rows' .*PosixPath"):
        stream(rows, Path("/in")).job_spec("dag/stream/run/-1#1")


# --- Functions of modules --------------------------------------------------------------------


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a DAGs folder with a module and a package, neither of which may be imported here."""
    folder = tmp_path / "dags"
    (folder / "lake" / "deep").mkdir(parents=True)
    for name in ("my_streams.py", "lake/__init__.py", "lake/deep/__init__.py", "lake/deep/rows.py"):
        (folder / name).write_text(f"raise AssertionError({name!r})")
    (folder / "lake" / "notes.txt").write_text("not code")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_module_of_the_dags_folder_is_shipped_by_itself(jobs: Path) -> None:
    assert list(modules_of("my_streams:orders", None)) == ["my_streams.py"]
    assert sorted(modules_of("lake.deep.rows:orders", "/opt/other.py")) == [
        "lake/__init__.py",
        "lake/deep/__init__.py",
        "lake/deep/rows.py",
    ]


@pytest.mark.parametrize(
    ("dataframe", "py_files"),
    [
        (None, None),
        ("my_streams:orders", "/opt/a.py, /opt/my_streams.py"),
        ("my_streams:orders", "/opt/jobs.zip"),
        ("nowhere_to_be_found:orders", None),
        ("json:loads", None),
        ("pyarrow:table", None),
    ],
)
def test_what_comes_another_way_is_not_shipped(
    jobs: Path, dataframe: str | None, py_files: str | None
) -> None:
    assert modules_of(dataframe, py_files) == {}


def test_a_change_of_the_module_is_a_change_of_the_stream(jobs: Path) -> None:
    task = LanceStreamOperator(task_id="stream", dataframe="my_streams:orders", **PLACES)
    before = task.submission().to_json()
    assert task.submission().to_json() == before
    (jobs / "my_streams.py").write_text("# changed")
    assert task.submission().to_json() != before
