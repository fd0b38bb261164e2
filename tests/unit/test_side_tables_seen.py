"""Side tables of real datasets, as check, status and maintenance see them."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.diagnostics.side_tables import SideTableStatus, collect_sides
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain, summary_lines
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.cdc.routes import ROUTES, Laboratory, Life


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    made = Laboratory(tmp_path, seed=1)
    driver = Life(made, None)
    driver.start()
    for _ in range(3):
        driver.step()
    assert driver.sides.release()
    return made


def sides(laboratory: Laboratory) -> dict[str, SideTableStatus]:
    home = open_dataset(laboratory.uri("home"))
    return {each.name: each for each in collect_sides(home, "routes", None)}


def test_each_side_table_is_seen_with_its_own_watermark(laboratory: Laboratory) -> None:
    found = sides(laboratory)
    assert len(found) == ROUTES
    for name, each in found.items():
        newest = max(epoch for epoch in range(3) if name in laboratory.sent(epoch))
        assert (each.watermark, each.lost, each.problem) == (newest, "", ""), name
        assert each.uri == laboratory.uri(name)


def test_side_tables_that_lack_epochs_are_findings(laboratory: Laboratory) -> None:
    names = sorted(sides(laboratory))
    shutil.rmtree(laboratory.uri(names[0]))
    lance.dataset(laboratory.uri(names[1]), version=1).restore()
    report = check(open_dataset(laboratory.uri("home")), orphans=False)
    lost = [each for each in report.findings if each.code is Code.SIDE_TABLE_LOST]
    assert [each.evidence["name"] for each in lost] == names[:2]
    assert "there is no dataset" in lost[0].summary
    assert "no trace of the query" in lost[1].summary
    assert f"--name {names[0]} --yes" in lost[0].command
    (status,) = report.statuses
    assert [each.name for each in status.sides] == names


def test_maintenance_of_the_home_is_that_of_all_routes(laboratory: Laboratory) -> None:
    given = {"steps": ["compact", "cleanup"], "minSmallFragments": 2, "olderThan": 0}
    options = MaintenanceOptions.parse(given)
    report = maintain(open_dataset(laboratory.uri("home")), options)
    assert [each.uri for each in report.sides] == [each.uri for each in sides(laboratory).values()]
    for each in report.sides:
        assert each.after.fragments == 1
    assert f"{report.sides[0].uri} at version" in "\n".join(summary_lines(report.to_json()))
    driver = Life(laboratory, None)
    driver.start()
    driver.step()
    assert driver.sides.release()
    assert laboratory.differences(4) == []


def test_maintenance_names_a_side_table_that_is_missing(laboratory: Laboratory) -> None:
    shutil.rmtree(laboratory.uri("route.19"))
    options = MaintenanceOptions.parse({"steps": ["compact"]})
    report = maintain(open_dataset(laboratory.uri("home")), options)
    assert len(report.sides) == ROUTES - 1
    assert [each for each in report.warnings if "'route.19' is missing" in each]
