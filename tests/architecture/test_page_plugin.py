"""The plugin as Airflow loads it: in every process, and for next to nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from airflow.api_fastapi.core_api.datamodels.plugins import PluginResponse
from airflow.plugins_manager import get_plugin_info, is_valid_plugin
from fastapi import FastAPI

import airflow_provider_lance.plugins.page
from airflow_provider_lance.links.lance import stream_url
from airflow_provider_lance.plugins.lance import LancePlugin


def test_the_entry_point() -> None:
    [found] = entry_points(group="airflow.plugins", name="lance")
    assert found.load() is LancePlugin


def test_airflow_takes_it_and_shows_it() -> None:
    assert is_valid_plugin(LancePlugin)
    [info] = [each for each in get_plugin_info() if each["name"] == "lance"]
    shown = PluginResponse.model_validate(info)
    [view] = shown.external_views
    assert (view.href, view.url_route) == ("lance/", "lance-streams")
    assert [app.url_prefix for app in shown.fastapi_apps] == ["/lance"]
    assert stream_url("/a", "q", None).startswith(view.href)


def test_the_application_is_made_once_and_only_when_asked_for() -> None:
    plugin = LancePlugin()
    assert "fastapi_apps" not in vars(plugin)
    [first], [second] = plugin.fastapi_apps, plugin.fastapi_apps
    assert isinstance(first["app"], FastAPI)
    assert first is second


def test_a_process_that_serves_no_page_imports_nothing_more() -> None:
    code = """
import sys
import airflow_provider_lance, airflow.plugins_manager
before = set(sys.modules)
from airflow_provider_lance.plugins.lance import LancePlugin
LancePlugin().on_load()
LancePlugin().external_views
print(sorted(set(sys.modules) - before))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "airflow_provider_lance"
    new = [f"{package}.plugins", f"{package}.plugins.lance"]
    assert ran.stdout.splitlines()[-1] == str(new)


def test_the_templates_lie_in_the_package() -> None:
    folder = Path(airflow_provider_lance.plugins.page.__file__).parent / "templates"
    found = {path.name for path in folder.iterdir()}
    assert {"base.html", "stream.html", "streams.html", "style.css"} <= found
