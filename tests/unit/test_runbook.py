"""The runbook: a page for each code, in the table of contents, with commands that can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_provider_lance.cli.main import build_parser
from airflow_provider_lance.diagnostics.findings import Code

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = DOCS / "runbook"
PAGES = sorted(path for path in RUNBOOK.glob("*.md") if path.name != "index.md")
CONCEPTS = sorted((DOCS / "concepts").glob("*.md"))
BLOCK = re.compile(r"^ *```bash\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+\.md)")


def page_of(code: Code) -> str:
    return f"{code.value}-{code.name.lower().replace('_', '-')}"


def commands() -> list[tuple[str, str]]:
    """Return every command of the runbook and of the page about the check, with its page."""
    pages = [*PAGES, RUNBOOK / "index.md", DOCS / "how-to" / "recovery-check.md"]
    return [
        (path.name, line.strip())
        for path in pages
        for block in BLOCK.findall(path.read_text())
        for line in block.splitlines()
        if line.strip()
    ]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert [path.stem for path in PAGES] == sorted(page_of(code) for code in Code)


@pytest.mark.parametrize("code", Code)
def test_a_page_names_its_trouble_and_is_short(code: Code) -> None:
    lines = (RUNBOOK / f"{page_of(code)}.md").read_text().splitlines()
    assert re.fullmatch(rf"# {code.value}: \w.+", lines[0])
    assert lines[2].startswith("> "), "it begins with the sentence that one sees"
    assert len(lines) <= 45


def test_every_page_is_in_the_table_of_contents_once() -> None:
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (RUNBOOK / "index.md").read_text(), re.DOTALL)
    listed = [
        line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")
    ]
    assert sorted(listed) == [path.stem for path in PAGES]


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_can_be_typed(page: str, command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "kill":
        assert re.fullmatch(r"-(CONT|KILL) \d+", " ".join(arguments)), page
        return
    if program == "airflow":
        assert arguments.pop(0) == "lance", page
    else:
        assert program == "lance-stream", page
    build_parser().parse_args(arguments)


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda path: path.stem)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`(tests/[^`]+)`", page.read_text())
    assert named
    for name in named:
        assert (DOCS.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
