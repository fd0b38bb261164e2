from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.airflow import Airflow
from tests.support.processes import QUICK_JAVA


@pytest.fixture(scope="package")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow with all its parts, for the example DAGs."""
    changes = {"JAVA_TOOL_OPTIONS": QUICK_JAVA}
    with Airflow(tmp_path_factory.mktemp("airflow"), changes=changes) as running:
        yield running
