"""Airflow finds the provider by its entry point, and every DAG of the project parses."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_provider_lance
from airflow_provider_lance.provider_info import get_provider_info

DAGS = Path(airflow_provider_lance.__file__).parents[1] / "dags"


@pytest.fixture(scope="module")
def providers() -> ProvidersManager:
    return ProvidersManager()


def test_the_entry_point() -> None:
    [found] = [
        point
        for point in entry_points(group="apache_airflow_provider")
        if point.dist and point.dist.name == "airflow-provider-lance"
    ]
    assert found.load() is get_provider_info


def test_airflow_discovers_the_provider(providers: ProvidersManager) -> None:
    provider = providers.providers["airflow-provider-lance"]
    assert provider.version == airflow_provider_lance.__version__
    assert provider.data.items() >= get_provider_info().items()


def test_airflow_knows_the_connection_type(providers: ProvidersManager) -> None:
    hook = ProvidersManagerTaskRuntime().hooks["lance"]
    assert hook
    assert (hook.hook_name, hook.connection_id_attribute_name) == ("Lance", "lance_conn_id")
    assert hook.hook_class_name == "airflow_provider_lance.hooks.lance.LanceHook"
    assert hook.connection_testable
    widgets = providers.connection_form_widgets
    fields = ("base_uri", "checkpoint_root", "storage_options")
    assert {f"extra__lance__{name}" for name in fields} <= widgets.keys()
    behaviour = providers.field_behaviours["lance"]
    assert behaviour["relabeling"]["login"] == "AWS access key id"


def test_airflow_knows_the_extra_links(providers: ProvidersManager) -> None:
    assert set(get_provider_info()["extra-links"]) <= set(providers.extra_links_class_names)


def test_every_dag_parses() -> None:
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert bag.dags, f"no DAG in {DAGS}"


def test_asset_uri_keeps_its_two_slashes_in_a_process_that_knows_only_airflow() -> None:
    code = 'from airflow.sdk import Asset; print(Asset(uri="lance:///data//x.lance/").uri)'
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "lance:///data/x.lance"
