"""What Airflow is told: valid by Airflow's own schema, and true."""

from __future__ import annotations

import importlib
import inspect
import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
import yaml
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseTrigger

import airflow_provider_lance
from airflow_provider_lance.assets.lance import create_asset, sanitize_uri
from airflow_provider_lance.decorators.stream import lance_stream_task
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.provider_info import get_provider_info

INFO = get_provider_info()
PACKAGE = Path(airflow_provider_lance.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("schema", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_provider_info_is_valid_by_airflows_schema(schema: str) -> None:
    definition = json.loads((Path(airflow.__path__[0]) / schema).read_text())
    # The second one describes files of Airflow's own tree; only what both have is asked of us.
    definition.pop("required")
    definition.pop("additionalProperties", None)
    jsonschema.validate(INFO, definition)
    assert {"name", "description", "package-name", "versions"} <= INFO.keys()


@pytest.mark.parametrize(
    ("key", "base"),
    [
        ("operators", BaseOperator),
        ("sensors", BaseOperator),
        ("hooks", BaseHook),
        ("triggers", BaseTrigger),
    ],
)
def test_provider_info_lists_every_module(key: str, base: type) -> None:
    listed = [name for entry in INFO[key] for name in entry["python-modules"]]
    found = []
    for path in sorted((PACKAGE / key).glob("*.py")):
        name = f"airflow_provider_lance.{key}.{path.stem}".removesuffix(".__init__")
        module = importlib.import_module(name)
        if any(_own_subclasses(module, base)):
            found.append(name)
    assert listed == found


def _own_subclasses(module: Any, base: type) -> list[type]:
    members = inspect.getmembers(module, inspect.isclass)
    return [c for _, c in members if issubclass(c, base) and c.__module__ == module.__name__]


def test_the_how_to_guides_are_there() -> None:
    [integration] = INFO["integrations"]
    assert len(integration["how-to-guide"]) > 5
    assert [each for each in integration["how-to-guide"] if not (ROOT / each[1:]).is_file()] == []


def test_the_registry_lists_every_class_a_dag_names() -> None:
    text = (ROOT / ".airflow-registry.yaml").read_text()
    registry = yaml.safe_load(text)
    listed = {
        each["module"]
        for key in ("operators", "sensors", "hooks", "triggers")
        for each in registry[key]
    }
    named = set()
    for key in ("operators", "sensors", "hooks", "triggers"):
        for entry in INFO[key]:
            for name in entry["python-modules"]:
                module = importlib.import_module(name)
                public = [each for each in module.__all__ if each.startswith("Lance")]
                named |= {f"{name}.{each}" for each in public}
    assert listed == named
    assert registry["package-name"] == INFO["package-name"]
    urls = dict(each.split(", ") for each in metadata(INFO["package-name"]).get_all("Project-URL"))
    assert {"Documentation", "Source", "Changelog"} <= urls.keys()
    assert (registry["docs-url"], registry["source-url"]) == (urls["Documentation"], urls["Source"])


def test_provider_info_lists_every_extra_link() -> None:
    listed = [import_string(path) for path in INFO["extra-links"]]
    assert all(issubclass(link, BaseOperatorLink) for link in listed)
    used = {type(link) for link in LanceStreamOperator.operator_extra_links}
    assert used == set(listed)


def test_the_connection_type_is_the_hooks() -> None:
    [connection] = INFO["connection-types"]
    assert import_string(connection["hook-class-name"]) is LanceHook
    assert connection["connection-type"] == LanceHook.conn_type
    assert connection["hook-name"] == LanceHook.hook_name
    assert set(connection["conn-fields"]) == {
        "base_uri",
        "checkpoint_root",
        "storage_options",
    }


def test_the_asset_uris_have_a_handler_and_a_factory() -> None:
    [uris] = INFO["asset-uris"]
    assert uris["schemes"] == ["lance"]
    # Airflow passes over schemes without a handler.
    assert import_string(uris["handler"]) is sanitize_uri
    assert import_string(uris["factory"]) is create_asset


def test_the_task_decorator_is_there() -> None:
    [decorator] = INFO["task-decorators"]
    assert decorator["name"] == "lance_stream"
    assert import_string(decorator["class-name"]) is lance_stream_task
