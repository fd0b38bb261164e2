"""What the doctor finds on a machine and in a store, each trouble made for real."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from airflow_provider_lance.cli import doctor as probe
from airflow_provider_lance.cli import doctor_machine as environment
from airflow_provider_lance.cli.doctor_connectors import diagnose_connectors
from airflow_provider_lance.cli.doctor_machine import Diagnosis, Level, diagnose_spark
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.dataset import open_dataset as really_open
from airflow_provider_lance.protocol.files import ArrowFiles
from tests.support.cli import Ran, Stream, python, typed
from tests.support.maintenance import files, make

PACKAGE = "airflow-provider-lance"
HERE = Path(sys.executable).parent
BASE = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_HOME": "",
    "JAVA_HOME": "",
    "PATH": f"{HERE}:{os.environ['PATH']}",
}
REPAIR = " --force-reinstall --no-deps pyspark==4.2.0 pyspark-client==4.2.0"


@pytest.fixture(autouse=True)
def _spark_submit_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", BASE["PATH"])


def doctor(*words: str, **environment: str) -> tuple[Ran, dict[str, dict[str, Any]]]:
    """See the doctor in a process of its own; return what it says by name."""
    ran = python(
        "-m", "airflow_provider_lance.cli", "doctor", *words, "-o", "json", env=BASE | environment
    )
    return ran, told(ran)


def told(ran: Ran) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in ran.document["diagnoses"]}


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_this_machine_is_fit() -> None:
    ran, found = doctor(JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert {
        "Python",
        "pylance",
        "pyarrow",
        "apache-airflow-core",
        "pyspark",
        "Java",
    } <= found.keys()
    assert found["PYSPARK_PYTHON"]["level"] == "ok"
    assert [each for each in found.values() if each["level"] == "error"] == []
    assert (ran.status, ran.document["healthy"]) == (0, True)


def install(folder: Path, name: str, version: str) -> None:
    """Install a distribution as pip leaves it behind, with one file that says whose it is."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "pyspark").mkdir(exist_ok=True)
    (folder / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ([("pyspark", "4.3.0"), ("pyspark-client", "4.2.0")], "those of 4.2.0"),
        ([("pyspark-client", "4.2.0"), ("pyspark", "4.3.0")], "those of 4.3.0"),
    ],
)
def test_pyspark_and_its_client_of_two_versions(
    tmp_path: Path, installed: list[tuple[str, str]], said: str
) -> None:
    for name, version in installed:
        install(tmp_path, name, version)
    ran, found = doctor(PYTHONPATH=str(tmp_path))
    assert (ran.status, found["pyspark-client"]["level"]) == (1, "error")
    assert said in found["pyspark-client"]["seen"]
    assert str(tmp_path / "pyspark") in found["pyspark-client"]["seen"]
    assert found["pyspark-client"]["advice"].endswith(REPAIR)


def test_pyspark_and_its_client_of_one_version(tmp_path: Path) -> None:
    install(tmp_path, "pyspark", "4.1.3")
    install(tmp_path, "pyspark-client", "4.1.3")
    ran, found = doctor(PYTHONPATH=str(tmp_path), JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert (ran.status, found["pyspark-client"]["level"]) == (0, "ok")


def test_files_that_another_pyspark_left(tmp_path: Path) -> None:
    install(tmp_path, "pyspark", "4.3.0")
    install(tmp_path, "pyspark-client", "4.3.0")
    (tmp_path / "pyspark" / "version.py").write_text("__version__ = '4.1.0'\n")
    ran, found = doctor(PYTHONPATH=str(tmp_path))
    assert ran.status == 1
    assert "are of 4.1.0" in found["pyspark-client"]["seen"]
    assert found["pyspark-client"]["advice"].endswith(REPAIR)


def test_files_that_an_uninstalled_client_took_along(tmp_path: Path) -> None:
    install(tmp_path, "pyspark", "4.2.0")
    install(tmp_path, "pyspark-client", "4.2.0")
    (tmp_path / "pyspark" / "version.py").unlink()
    ran, found = doctor(PYTHONPATH=str(tmp_path))
    assert ran.status == 1
    assert "files of pyspark 4.2.0 are missing" in found["pyspark-client"]["seen"]
    assert found["pyspark-client"]["advice"].endswith(REPAIR)


def told_of(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> dict[str, Diagnosis]:
    """Return what is said of packages, some of which have other versions, or none."""
    known = environment.version_of
    monkeypatch.setattr(environment, "version_of", lambda name: versions.get(name, known(name)))
    return {each.name: each for each in environment.diagnose_packages()}


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [
        ("pandas", None, Level.ERROR),
        ("pandas", "2.1.4", Level.ERROR),
        ("pandas", "2.2.0", Level.OK),
        ("pandas", "3.0.1", Level.WARNING),
        ("pylance", None, Level.ERROR),
        ("pylance", "13.0.0", Level.ERROR),
        ("pylance", "15.0.0", Level.WARNING),
        ("pyarrow", "19.0.1", Level.ERROR),
        ("pyspark", "3.5.9", Level.ERROR),
        ("pyspark", None, Level.NOTE),
    ],
)
def test_a_package_that_a_stream_needs(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, level: Level
) -> None:
    found = told_of(monkeypatch, **{name: version})
    assert found[name].level is level
    assert ("pip install" in found[name].advice) == (level is not Level.OK)


def test_files_that_a_client_left_which_is_no_longer_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = told_of(monkeypatch, **{"pyspark": "4.3.0", "pyspark-client": None})
    assert found["pyspark-client"].level is Level.ERROR
    assert "are of 4.2.0" in found["pyspark-client"].seen


def test_the_lines_to_type_are_the_packages_own() -> None:
    """What the doctor tells to type brings what the package's own metadata ask for."""
    wanted = {Requirement(each).name: Requirement(each) for each in requires(PACKAGE) or []}
    pair = {str(wanted[name].specifier) for name in ("pyspark", "pyspark-client")}
    assert pair == {"==4.2.0"}
    assert REPAIR.count(pair.pop()) == 2
    for name, (least, below) in environment._TRIED.items():
        if name == "pyspark":
            continue
        asked = wanted[name.replace("airflow-core", "airflow")].specifier
        assert asked.contains(".".join(map(str, least)))
        assert below is None or not asked.contains(".".join(map(str, below)))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('echo "    java.version = 21.0.4" >&2; echo "    java.home = /j" >&2', "ok"),
        ('echo "    java.version = 11.0.2" >&2', "error"),
        ('echo "    java.version = 1.8.0_402" >&2', "error"),
        ("exit 1", "error"),
    ],
)
def test_java(tmp_path: Path, text: str, level: str) -> None:
    program(tmp_path / "bin" / "java", text)
    ran, found = doctor(JAVA_HOME=str(tmp_path))
    assert found["Java"]["level"] == level
    assert f"JAVA_HOME={tmp_path}" in found["Java"]["seen"]
    assert ran.status == (0 if level == "ok" else 1)


def test_no_java_at_all(tmp_path: Path) -> None:
    ran, found = doctor(PATH=str(tmp_path))
    assert (ran.status, found["Java"]["level"]) == (1, "error")


def test_a_spark_submit_that_is_not_on_the_path(tmp_path: Path) -> None:
    ran, found = doctor(PATH="/usr/bin:/bin")
    assert (ran.status, found["spark-submit"]["level"]) == (1, "error")
    assert found["spark-submit"]["advice"] == f"export PATH={HERE}:$PATH"
    program(tmp_path / "bin" / "spark-submit", "exit 0")
    _, found = doctor(PATH="/usr/bin:/bin", SPARK_HOME=str(tmp_path))
    assert found["spark-submit"]["advice"] == f"export PATH={tmp_path}/bin:$PATH"


def test_no_spark_submit_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = {each.name: each for each in diagnose_spark({"PATH": str(tmp_path)})}
    assert found["spark-submit"].level is Level.ERROR
    assert found["spark-submit"].advice.endswith(" 'airflow-provider-lance[pyspark]'")


def test_another_spark(tmp_path: Path) -> None:
    _, found = doctor(SPARK_HOME=str(tmp_path))
    assert found["SPARK_HOME"]["level"] == "error"
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    _, found = doctor(SPARK_HOME=str(tmp_path))
    assert found["SPARK_HOME"]["level"] == "warning"
    assert "Spark 3.5.1" in found["SPARK_HOME"]["seen"]


KAFKA = "org.apache.spark:spark-sql-kafka-0-10_{}:{}"


@pytest.mark.parametrize(
    ("jars", "defaults", "packages", "expected"),
    [
        ([], "", "", ["note"]),
        (["sql-kafka-0-10_2.13-4.1.1"], "", "", ["ok"]),
        (["sql-kafka-0-10_2.13-4.0.2"], "", "", ["warning"]),
        (["sql-kafka-0-10_2.12-4.1.1"], "", "", ["error"]),
        (["sql-kafka-0-10_2.13-4.1.1", "token-provider-kafka-0-10_2.13-4.0.0"], "", "",
         ["ok", "warning"]),
        (["sql-kafka-0-10_2.13-4.1.1", "sql-kafka-0-10_2.13-4.0.0"], "", "",
         ["warning", "ok", "error"]),
        ([], f"spark.jars.packages {KAFKA.format('2.13', '4.2.0')}", "", ["warning"]),
        ([], "spark.jars /x/a.jar,/x/spark-sql-kafka-0-10_2.13-4.1.1.jar", "", ["ok"]),
        ([], "spark.driver.extraClassPath={folder}/*", "", ["ok"]),
        ([], "", f"a:b:1, {KAFKA.format('2.13', '4.1.1')}", ["ok"]),
        ([], "", KAFKA.format("2.12", "3.5.1"), ["error"]),
        ([], "", "org.apache.spark:spark-avro_2.13:4.0.0", ["note"]),
    ],
)  # fmt: skip
def test_kafkas_connector(
    tmp_path: Path, jars: list[str], defaults: str, packages: str, expected: list[str]
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "more").mkdir()
    for name in ("core_2.13-4.1.1", *jars):
        (tmp_path / "jars" / f"spark-{name}.jar").touch()
    (tmp_path / "more" / "spark-sql-kafka-0-10_2.13-4.1.1.jar").touch()
    text = defaults.replace("{folder}", str(tmp_path / "more"))
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"# none\n{text}\n")
    found = list(diagnose_connectors(packages, {"SPARK_HOME": str(tmp_path)}))
    assert [each.level.value for each in found] == expected, found
    if "ok" not in expected:
        assert KAFKA.format("2.13", "4.1.1") in found[0].advice


def test_the_connector_of_a_spark_that_has_none_yet(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    given = KAFKA.format("2.13", "4.2.0")
    _, found = doctor("--packages", given, SPARK_HOME=str(tmp_path))
    assert found["Kafka connector"]["level"] == "warning"
    assert "Spark is 4.3.0, built with Scala 2.13" in found["Kafka connector"]["seen"]
    assert found["Kafka connector"]["advice"].endswith("is published by now, or use Spark 4.2.0")


def test_the_python_of_the_workers(tmp_path: Path) -> None:
    old = program(tmp_path / "python3", "echo 3.8")
    _, found = doctor(PYSPARK_PYTHON=str(tmp_path / "none"))
    assert found["PYSPARK_PYTHON"]["level"] == "error"
    _, found = doctor(PYSPARK_PYTHON=str(old), PYSPARK_DRIVER_PYTHON=sys.executable)
    assert found["PYSPARK_PYTHON"]["level"] == "warning"
    assert found["PYSPARK_DRIVER_PYTHON"]["level"] == "ok"


def test_a_dataset_with_its_checkpoint(stream: Stream) -> None:
    before = files(str(stream.folder))
    ran = typed("doctor", stream.uri, "-o", "json")
    found = told(ran)
    assert found["dataset"]["level"] == "ok"
    assert found["checkpoint of orders"]["level"] == "ok"
    assert "planned 3, committed 3" in found["checkpoint of orders"]["seen"]
    assert found["conditional writes"]["seen"] == "not tried"
    assert files(str(stream.folder)) == before


def test_a_checkpoint_that_is_another_or_not_there(stream: Stream) -> None:
    (stream.checkpoint / "metadata").write_text(json.dumps({"id": "other"}))
    ran = typed("doctor", stream.uri, "-o", "json")
    assert (ran.status, told(ran)["checkpoint of orders"]["level"]) == (1, "error")
    shutil.rmtree(stream.checkpoint)
    assert told(typed("doctor", stream.uri, "-o", "json"))["checkpoint of orders"]["level"] == (
        "warning"
    )


def test_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    """That is so before every first run with createIfMissing."""
    ran = typed("doctor", tmp_path / "none.lance", "-o", "json")
    found = told(ran)["dataset"]
    assert (found["level"], found["seen"]) == (
        "note",
        f"there is none at {tmp_path}/none.lance yet",
    )
    assert "createIfMissing=true" in found["advice"]


def test_a_checkpoint_that_the_first_start_creates(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    words = ("doctor", uri, "orders", "--checkpoint", tmp_path / "checkpoint", "-o", "json")
    found = told(typed(*words))["checkpoint of orders"]
    assert (found["level"], found["advice"]) == ("note", "the first start creates it")


def test_a_probe_that_somebody_else_removes_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ArrowFiles.remove

    def twice(self: ArrowFiles, path: str) -> None:
        real(self, path)
        real(self, path)

    monkeypatch.setattr(ArrowFiles, "remove", twice)
    ran = typed("doctor", make(tmp_path, 1), "--write-probe", "-o", "json")
    writes = told(ran)["conditional writes"]
    assert (writes["level"], writes["advice"]) == ("ok", "")


def test_what_is_typed_without_a_dataset() -> None:
    assert typed("doctor", "--write-probe").status == 2


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    before = files(str(tmp_path))
    ran = typed("doctor", uri, "--write-probe", "-o", "json")
    writes = told(ran)["conditional writes"]
    assert writes["level"] == "ok"
    assert "exactly one landed, 5 times out of 5" in writes["seen"]
    assert files(str(tmp_path)) == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.lance"]


def test_the_probe_finds_a_store_that_lets_both_land(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(LanceDatasetPort):
        """Looks as if no commit had come before, like a store that overwrites what is there."""

        def commit(self, *change: Any) -> LanceDatasetPort:
            return LanceDatasetPort.commit(self.latest(), *change)

    def open_careless(*args: Any, **kwargs: Any) -> LanceDatasetPort:
        return Careless(really_open(*args, **kwargs).dataset)

    monkeypatch.setattr(probe, "open_dataset", open_careless)
    # One after the other, so that it is the store's rule that is tried and not who is faster.
    monkeypatch.setattr(probe, "ThreadPoolExecutor", lambda _: OneByOne())
    monkeypatch.setattr(probe, "Barrier", lambda _: OneByOne())
    ran = typed("doctor", make(tmp_path, 1), "--write-probe", "-o", "json")
    writes = told(ran)["conditional writes"]
    assert (ran.status, writes["level"]) == (1, "error")
    assert "2 of 2 commits" in writes["seen"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.lance"]


class OneByOne:
    """Stands for the pool and its starting line, where nothing is to run at once."""

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, work: Any, items: Any) -> list[Any]:
        return [work(item) for item in items]

    def wait(self) -> None: ...
