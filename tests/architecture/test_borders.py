"""Who may import what, and what an import may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_lance

PACKAGE = Path(airflow_provider_lance.__file__).parent
HEAVY = ["lance", "numpy", "pandas", "pyarrow", "pyspark"]
LONGEST = 350


def modules() -> list[str]:
    """Name every module that an Airflow process may import: all but the Spark job's."""
    names = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    dotted = [name.as_posix().replace("/", ".").removesuffix(".__init__") for name in names]
    return sorted(name for name in dotted if ".spark" not in name and "__main__" not in name)


def test_what_airflow_imports_costs_nothing_heavy() -> None:
    code = f"""
import importlib, sys
for name in {modules()!r}:
    importlib.import_module(name)
heavy = [name for name in {HEAVY!r} if name in sys.modules]
spark = [name for name in sys.modules if name.startswith("airflow_provider_lance.spark")]
print(heavy + spark)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"
    assert "airflow_provider_lance.operators.stream" in modules()


def test_the_provider_info_imports_next_to_nothing() -> None:
    code = """
import sys
from airflow_provider_lance.provider_info import get_provider_info
get_provider_info()
print(sorted(n for n in sys.modules if n.split(".")[0] in ("airflow", "airflow_provider_lance")))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(
        ["airflow_provider_lance", "airflow_provider_lance.provider_info"]
    )


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST
