"""What is shipped: all of the middle, nothing of Airflow, the same bytes each time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from airflow_provider_lance.cli.metrics import SHIPPED
from airflow_provider_lance.shipping import application_path, build_zip


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    root = Path(__file__).parents[2]
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=root,
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("*.whl")
    return ZipFile(built)


def test_the_wheel_says_that_it_is_typed(wheel: ZipFile) -> None:
    names = wheel.namelist()
    assert "airflow_provider_lance/py.typed" in names
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    assert "Typing :: Typed" in wheel.read(metadata).decode()


def test_the_wheel_holds_the_alert_rules_and_the_dashboard(wheel: ZipFile) -> None:
    for name in SHIPPED.values():
        assert f"airflow_provider_lance/alerts/{name}" in wheel.namelist()


def test_spark_finds_the_source_in_the_wheel_without_registration(
    wheel: ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)
    looked_up = (
        "from pyspark.sql.datasource import DataSource; import pyspark_lance_stream as found; "
        "assert issubclass(found.DefaultSource, DataSource); print(found.DefaultSource.name())"
    )
    said = subprocess.run(
        [sys.executable, "-c", looked_up], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert said.stdout == "lance\n"


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    return build_zip(tmp_path)


def test_the_same_sources_give_the_same_bytes(tmp_path: Path, zipped: Path) -> None:
    first = zipped.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    assert build_zip(other).read_bytes() == first


def test_holds_the_middle_and_only_that(zipped: Path) -> None:
    names = ZipFile(zipped).namelist()
    package = application_path().parents[1]
    wanted = [
        path.relative_to(package.parent).as_posix()
        for folder in ("protocol", "supervision", "spec", "source", "maintenance", "spark")
        for path in (package / folder).rglob("*.py")
    ]
    own = ["airflow_provider_lance/__init__.py", "airflow_provider_lance/exceptions.py"]
    assert names == sorted(wanted + own)
    assert "airflow_provider_lance/protocol/session.py" in names
    assert "airflow_provider_lance/spark/job.py" in names


def test_the_application_is_a_file_of_the_package() -> None:
    assert application_path().is_file()
    assert application_path().parts[-3:] == ("airflow_provider_lance", "spark", "job.py")


def test_names_nothing_of_airflow(zipped: Path) -> None:
    with ZipFile(zipped) as archive:
        for name in archive.namelist():
            for node in ast.walk(ast.parse(archive.read(name))):
                match node:
                    case ast.Import():
                        imported = [alias.name for alias in node.names]
                    case ast.ImportFrom():
                        imported = [node.module or ""]
                    case _:
                        continue
                assert not [m for m in imported if m.split(".")[0] == "airflow"], name


def test_the_protocol_imports_in_a_bare_interpreter(zipped: Path) -> None:
    # -I -S: no site-packages, so neither Airflow nor lance, pyarrow or pyspark are within reach.
    code = f"""
import importlib, sys, zipfile
sys.path.insert(0, {str(zipped)!r})
for name in zipfile.ZipFile({str(zipped)!r}).namelist():
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if ".spark" not in module:
        found = importlib.import_module(module)
        assert found.__file__.startswith({str(zipped)!r}), found.__file__
assert "airflow_provider_lance.protocol.session" in sys.modules
print(*sorted({{"airflow", "lance", "pyarrow", "pyspark"}} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "", "")
