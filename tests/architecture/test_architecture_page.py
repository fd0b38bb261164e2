"""The architecture page names every module of the package, and no file that is not there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import airflow_provider_lance

PACKAGE = Path(airflow_provider_lance.__file__).parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs/concepts/architecture.md"


def _section(title: str) -> str:
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _in_first_column(text: str) -> list[str]:
    cells = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]


def named_modules() -> list[str]:
    """Return the modules of the page's tables, with dots, from below the package."""
    names = []
    for section in re.split(r"^### ", _section("The modules"), flags=re.MULTILINE)[1:]:
        heading, _, table = section.partition("\n")
        rooms = re.findall(r"`(\w+)/`", heading)
        # Where one table has several rooms, each name brings its own.
        above = f"{rooms[0]}." if len(rooms) == 1 else ""
        names += [f"{above}{name}" for name in _in_first_column(table)]
    return names


def _about(module: str) -> str:
    """Return the first line of a module's docstring, which is a start for its row."""
    text = PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def test_the_architecture_page_names_each_module_once() -> None:
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    there = {path.with_suffix("").as_posix().replace("/", ".") for path in paths}
    modules = {name for name in there if not name.endswith("__init__")}
    named = Counter(named_modules())
    gone = sorted(named.keys() - modules)
    new = [f"| `{name}` | {_about(name)} |" for name in sorted(modules - named.keys())]
    assert not gone, "remove from the tables: " + ", ".join(gone)
    assert not new, "add to the tables:\n" + "\n".join(new)
    assert [name for name, times in named.items() if times > 1] == []


def test_the_architecture_page_opens_files_that_exist() -> None:
    table = _section("You want to change …")
    opened = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py|\w+/\w+_…)`", table)
    assert len(opened) > 40
    for name in opened:
        places = [*PACKAGE.glob(name.replace("…", "*")), *ROOT.glob(name)]
        assert places, f"{name} of {PAGE.name} is not there"


def test_the_architecture_page_names_each_import_contract() -> None:
    contracts = re.findall(r'^id = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert contracts
    borders = _section("Borders, and how they are checked")
    assert set(re.findall(r"import contract `([\w-]+)`", borders)) == set(contracts)
