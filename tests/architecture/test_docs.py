"""What the pages name is there: files of the repository, public names, and plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")],
)
NAMED = re.compile(r"`((?:tests|dags|benchmarks|docs|airflow_provider_lance)/[\w./-]*\w\.\w+)`")
README_LINES = 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_that_a_page_names_exists(page: Path) -> None:
    named = set(NAMED.findall(page.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_each_link_of_the_front_pages_leads_to_a_file() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
        assert links, name
        assert {link for link in links if not (ROOT / link).exists()} == set(), name


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES
