from __future__ import annotations

import subprocess

import pytest

from airflow_provider_lance import shipping
from tests.support.bare import bare_python
from tests.support.submit import Submitter


@pytest.fixture(scope="session")
def submit(tmp_path_factory: pytest.TempPathFactory) -> Submitter:
    python = bare_python(tmp_path_factory.mktemp("bare"))
    missing = subprocess.run(
        [python, "-c", "import airflow"], check=False, capture_output=True, text=True
    )
    assert "No module named 'airflow'" in missing.stderr
    return Submitter(python, shipping.build_zip(tmp_path_factory.mktemp("zip")))
