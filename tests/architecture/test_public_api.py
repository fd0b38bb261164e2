"""The reference, each module's `__all__` and what Airflow is told name the same public things."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import airflow_provider_lance
from airflow_provider_lance.provider_info import get_provider_info

PACKAGE = Path(airflow_provider_lance.__file__).parent
REFERENCE = (PACKAGE.parent / "docs/reference.md").read_text()
DOCUMENTED = re.findall(r"auto(?:class|function):: ([\w.]+)", REFERENCE)
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))


def exported(path: Path) -> list[str] | None:
    """Return a module's `__all__` without importing the module."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_module_lists_its_names(path: Path) -> None:
    names = exported(path)
    assert names is not None
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if name.startswith("_")] == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_name_of_the_reference_is_exported_by_the_module_it_shows(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    path = PACKAGE.parent / f"{module.replace('.', '/')}.py"
    assert attribute in (exported(path) or [])


def test_each_class_in_the_provider_info_is_in_the_reference() -> None:
    info = get_provider_info()
    modules = {
        module
        for kind in ("operators", "sensors")
        for group in info[kind]
        for module in group["python-modules"]
    }
    documented = {name.rpartition(".")[0] for name in DOCUMENTED}
    assert modules <= documented
    links = set(info["extra-links"])
    hooks = {each["hook-class-name"] for each in info["connection-types"]}
    assert links | hooks <= set(DOCUMENTED)
