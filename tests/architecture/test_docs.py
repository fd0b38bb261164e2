"""What the pages name is there: files of the repository, public names, and plain words."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")],
)
NAMED = re.compile(r"`((?:tests|dags|benchmarks|docs|airflow_provider_lance)/[\w./-]*\w\.\w+)`")
README_LINES = 150
CONTESTANTS = {
    "the classic two-transaction design": "classic",
    "its one-transaction successor": "successor",
    "`deltalake`": "delta",
    "`pyiceberg`": "iceberg",
    "a bare Lance append: no protocol, no replay detected": "bare",
    "Spark's parquet sink": "parquet",
    "Spark's noop sink, which writes nothing": "noop",
}
SHAPES = {
    "200 columns": "wide",
    "vectors of 768 floats": "vectors",
    "nested": "nested",
    "four narrow columns": "narrow",
    "sorted ids": "sorted ids",
    "JSON text": "json",
    "few distinct strings": "few strings",
    "random doubles": "doubles",
    "random text, short": "text",
    "random text of 8 KB": "long text",
}
"""What the page on costs calls the benchmarks' contestants and shapes."""


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


def test_the_page_on_costs_has_the_ratios_of_the_published_runs() -> None:
    page = (ROOT / "docs/costs.md").read_text()
    with (ROOT / "docs/figures/ratios.csv").open() as file:
        ratios = [each for each in csv.DictReader(file) if each["of"] == "lance-stream"]
    small, large = page.split("## Small epochs")[1].split("## Large epochs")
    for name, written, on_spark in _rows(small, CONTESTANTS):
        _agree(written, ratios, experiment="E1", figure="commit_p50", to=name)
        _agree(on_spark, ratios, experiment="E1", figure="epoch_p50", to=name)
    for shape, first, later in _rows(large, SHAPES):
        for shown, epochs in ((first, "first epoch"), (later, "later epochs")):
            conditions = f"shape={shape};epochs={epochs}"
            _agree(shown, ratios, figure="rows_per_second", to="parquet", conditions=conditions)


def _rows(part: str, names: dict[str, str]) -> list[list[str]]:
    """Return the rows of the part's first table, by their names in the raw results."""
    lines = part.split("|---|---|---|\n")[1].split("\n\n", maxsplit=1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [name for name, *_ in rows] == list(names)
    return [[names[name], *cells] for name, *cells in rows]


def _agree(shown: str, ratios: list[dict[str, str]], **labels: str) -> None:
    """Compare a cell with the worst of the ratios that have these labels."""
    found = [float(each["ratio"]) for each in ratios if labels.items() <= each.items()]
    assert bool(shown) == bool(found), (shown, labels)
    if shown:
        digits = len(shown.partition(".")[2])
        assert float(shown) == round(max(found), digits), (shown, found, labels)
