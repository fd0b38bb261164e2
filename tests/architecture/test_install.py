"""What one line installs fits together, and says where it comes from."""

from __future__ import annotations

from importlib.metadata import distribution, metadata, version
from pathlib import Path

from airflow_provider_lance.cli.doctor_machine import _REPAIR


def _hashes(name: str) -> dict[str, str]:
    """Return the hash of every file that a distribution brought, by path, from its RECORD."""
    files = distribution(name).files or []
    return {str(file): file.hash.value for file in files if file.hash and file.suffix != ".pyc"}


def test_pyspark_and_its_client_bring_the_same_files() -> None:
    assert version("pyspark") == version("pyspark-client")
    whole, client = _hashes("pyspark"), _hashes("pyspark-client")
    shared = whole.keys() & client.keys()
    assert len(shared) > 300
    assert {path for path in shared if whole[path] != client[path]} == set()
    # Nothing of the package is the client's alone: pyspark is whole whichever was installed last.
    assert {path for path in client.keys() - whole.keys() if path.startswith("pyspark/")} == set()


def test_the_doctor_repairs_to_what_the_extra_pins() -> None:
    asked = metadata("airflow-provider-lance").get_all("Requires-Dist") or []
    pins = {each.split(";")[0].strip() for each in asked if "extra == 'pyspark'" in each}
    assert {each for each in _REPAIR.split() if "==" in each} <= pins


def test_a_stream_finds_the_pandas_that_pyspark_asks_for() -> None:
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    require_minimum_pandas_version()
    asked = metadata("airflow-provider-lance").get_all("Requires-Dist") or []
    assert [each for each in asked if each.startswith("pandas") and "extra == 'pyspark'" in each]


def test_the_readme_names_the_versions_that_are_installed() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"pins `pyspark` and `pyspark-client` to one version, {version('pyspark')}." in readme
