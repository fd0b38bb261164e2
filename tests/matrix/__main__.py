"""`make matrix`: the built wheel in one environment for each combination of versions.

Each environment is made by uv under `.tools/matrix/` and kept; a second run takes only the streams.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLACE = REPOSITORY / ".tools" / "matrix"
WHEEL = "airflow_provider_lance"
UNDATED = (
    *("apache-airflow-providers-apache-spark", "apache-airflow-providers-common-compat"),
    *("lance-namespace", "lance-namespace-urllib3-client", "pylance", "pyspark", "pyspark-client"),
)
"""What may be newer than the Airflow beside it: requirements of this package, and theirs."""


@dataclass(frozen=True)
class Combination:
    """Versions that are tried together.

    ``also`` are further requirements: the floors of this package. ``day`` is the day after this
    Airflow was released: everything but :data:`UNDATED` is as it was then, as with Airflow's
    constraints file. Without it, old releases of Airflow break on newer dependencies.
    """

    name: str
    python: str
    airflow: str
    provider: str
    pyspark: str
    also: tuple[str, ...] = ()
    day: str = ""
    client: bool = True

    def requirements(self) -> list[str]:
        return [
            f"apache-airflow=={self.airflow}",
            f"apache-airflow-providers-apache-spark=={self.provider}",
            f"pyspark=={self.pyspark}",
            *([f"pyspark-client=={self.pyspark}"] if self.client else []),
            "pandas>=2.2,<3",
            *self.also,
        ]

    def dates(self) -> list[str]:
        if not self.day:
            return []
        undated = [f"--exclude-newer-package={name}=false" for name in UNDATED]
        return [f"--exclude-newer={self.day}", *undated]


COMBINATIONS = [
    Combination(
        "oldest",
        "3.11",
        "3.1.0",
        "6.1.0",
        "4.0.0",
        ("pylance==14.0.0", "pyarrow==20.0.0", "pandas==2.2.3", "rich==14.0.0"),
        day="2025-09-26",
    ),
    Combination("middle", "3.12", "3.2.2", "6.2.0", "4.1.3", day="2026-05-30"),
    Combination("newest", "3.13", "3.3.2", "6.3.4", "4.2.0"),
    # As on a worker whose Spark is newer than any pyspark-client.
    Combination("newest-spark", "3.13", "3.3.2", "6.3.4", "4.3.0", client=False),
]


def uv() -> str:
    """Return the uv that setup uses."""
    own = REPOSITORY / ".tools" / "uv" / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv") or sys.exit("run `make setup` first")


def find_python(version: str) -> str | None:
    """Return an interpreter of this version; none is downloaded."""
    places = Path("~/.pyenv/versions").expanduser().glob(f"{version}*/bin")
    environment = os.environ | {
        "UV_PYTHON_SEARCH_PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]])
    }
    ran = subprocess.run(
        [uv(), "python", "find", "--no-python-downloads", "--system", version],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return ran.stdout.strip() or None


def build_wheel() -> Path:
    """Build this checkout's wheel; return its path."""
    folder = PLACE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    [wheel] = folder.glob(f"{WHEEL}-*.whl")
    return wheel


def install(combination: Combination, wheel: Path, log: Path) -> tuple[Path | None, str]:
    """Make the environment, or bring it up to date; return its Python, and a remark."""
    remark, interpreter = "", find_python(combination.python)
    if interpreter is None:
        interpreter, remark = sys.executable, f"Python {combination.python} is not here"
    folder = PLACE / combination.name
    wanted = json.dumps([interpreter, *combination.requirements(), combination.day])
    stamp, python = folder / "stamp.json", folder / "bin" / "python"
    options = [*combination.dates(), "--reinstall-package", "airflow-provider-lance", str(wheel)]
    if not combination.client:
        overrides = PLACE / "without-client.txt"
        overrides.write_text("pyspark-client ; python_version < '0'\n")
        options += ["--overrides", str(overrides)]
    with log.open("w") as file:
        commands = []
        if not stamp.exists() or stamp.read_text() != wanted:
            commands.append([uv(), "venv", "--clear", "--python", interpreter, str(folder)])
        commands.append(
            [uv(), "pip", "install", "--python", str(python), *combination.requirements(), *options]
        )
        if combination.client:
            commands.append([uv(), "pip", "check", "--python", str(python)])
        for command in commands:
            file.write(f"$ {' '.join(command)}\n")
            file.flush()
            ran = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
            if ran.returncode:
                return None, f"{Path(command[0]).name} {command[1]} failed"
    stamp.write_text(wanted)
    return python, remark


def environment(python: Path, folder: Path) -> dict[str, str]:
    """Return what the streams of one combination run in: this machine's Java, nothing else."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return kept | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "MATRIX_FOLDER": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db?timeout=20",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }


def size(folder: Path) -> str:
    total = sum(each.lstat().st_size for each in folder.rglob("*") if each.is_file())
    return f"{total / 2**20:,.0f} MiB"


def try_combination(combination: Combination, wheel: Path) -> bool:
    """Install one combination and run its checks; print a line for each."""
    began = time.monotonic()
    log = PLACE / f"{combination.name}.log"
    python, remark = install(combination, wheel, log)
    spent = f"{time.monotonic() - began:.0f} s"
    if python is None:
        print(f"{combination.name}: not installed ({remark}), see {log}", flush=True)
        return False
    versions = f"Airflow {combination.airflow}, Spark provider {combination.provider}, "
    versions += f"PySpark {combination.pyspark}, Python {combination.python}"
    held = size(PLACE / combination.name)
    print(f"{combination.name}: {versions} ({spent}, {held}) {remark}", flush=True)
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        ran = subprocess.Popen(
            [str(python), str(Path(__file__).parent / "run.py")],
            cwd=name,
            env=environment(python, Path(name)),
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
        )
        assert ran.stdout
        for line in ran.stdout:
            if not line.startswith('{"check"'):
                continue  # what Airflow prints when it is imported
            check = json.loads(line)
            mark = "ok    " if check["ok"] else "FAILED"
            print(
                f"  {mark} {check['check']:9} {check['seconds']:6} s  {check['said']}", flush=True
            )
        return ran.wait() == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = [each.name for each in COMBINATIONS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {names}; by default all")
    chosen = parser.parse_args().names or names
    PLACE.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel()
    passed = [try_combination(each, wheel) for each in COMBINATIONS if each.name in chosen]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
