"""The provider's metadata for Airflow; every Airflow process reads it: import little."""

from __future__ import annotations

from typing import Any

from airflow_provider_lance import __version__

__all__ = ["get_provider_info"]

_INTEGRATION = "Lance"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "airflow-provider-lance",
        "name": "Lance",
        "description": "Stream into `Lance <https://lance.org/>`__ datasets exactly once with "
        "Spark Structured Streaming, run and watched from Airflow.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://lance.org/",
                "how-to-guide": [
                    f"/docs/{page}.md"
                    for page in (
                        "quickstart",
                        "how-to/stream-operator",
                        "how-to/supervise",
                        "how-to/epoch-sensor",
                        "how-to/assets",
                        "how-to/optimize",
                        "how-to/recovery-check",
                        "how-to/alerts",
                    )
                ],
                "tags": ["software"],
            }
        ],
        "operators": [
            _modules(
                "operators.optimize", "operators.recovery", "operators.stop", "operators.stream"
            )
        ],
        "sensors": [_modules("sensors.epoch")],
        "hooks": [_modules("hooks.lance")],
        "triggers": [
            _modules(
                "triggers.epoch",
                "triggers.event",
                "triggers.stop",
                "triggers.stream",
                "triggers.turns",
            )
        ],
        "notifications": [
            f"airflow_provider_lance.notifications.lance.Lance{kind}Notifier"
            for kind in ("Email", "Slack", "Webhook")
        ],
        "task-decorators": [
            {
                "name": "lance_stream",
                "class-name": "airflow_provider_lance.decorators.stream.lance_stream_task",
            }
        ],
        "asset-uris": [
            {
                "schemes": ["lance"],
                "handler": "airflow_provider_lance.assets.lance.sanitize_uri",
                "factory": "airflow_provider_lance.assets.lance.create_asset",
            }
        ],
        "connection-types": [_connection_type()],
        "config": {"lance": _settings()},
        "cli": ["airflow_provider_lance.cli.airflow.get_cli_commands"],
        "extra-links": [
            "airflow_provider_lance.links.lance.LanceDatasetLink",
            "airflow_provider_lance.links.lance.SparkUILink",
            "airflow_provider_lance.links.lance.LanceStreamLink",
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": _INTEGRATION,
        "python-modules": [f"airflow_provider_lance.{name}" for name in names],
    }


def _settings() -> dict[str, Any]:
    return {
        "description": "Settings of the Lance provider.",
        "options": {
            "datasets": {
                "description": "Datasets whose streams the page shows beside those of registered "
                "assets, separated by commas: a URI or path, and after '#' the connection that "
                "opens it; '#' with nothing after it means without a connection.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "/data/orders.lance, s3://bucket/clicks.lance#minio",
                "default": "",
            },
            "driver_folder": {
                "description": "Folder on each worker's host in which drivers keep their logs, an "
                "absolute path; empty for 'lance-streams' in Airflow's home.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "/var/lib/lance-streams",
                "default": "",
            },
        },
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "lance",
        "hook-class-name": "airflow_provider_lance.hooks.lance.LanceHook",
        "hook-name": "Lance",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "schema", "extra"],
            "relabeling": {"login": "AWS access key id", "password": "AWS secret access key"},
            "placeholders": {
                "base_uri": "s3://bucket/warehouse or /data/lance",
                "checkpoint_root": "s3a://bucket/checkpoints or /data/checkpoints",
                "login": "only for S3, and only without another source of credentials",
            },
        },
        "conn-fields": {
            "base_uri": {
                "label": "Base URI",
                "description": "Folder or bucket path that relative dataset names are joined to.",
                "schema": {"type": ["string", "null"]},
            },
            "checkpoint_root": {
                "label": "Checkpoint root",
                "description": "Folder below which each streaming query has its checkpoint, as "
                "Spark names it: on S3 with s3a://. Without it each stream names its "
                "checkpoint_location.",
                "schema": {"type": ["string", "null"]},
            },
            "storage_options": {
                "label": "Storage options",
                "description": "JSON object passed to Lance as it is, for example "
                '{"region": "eu-central-1", "endpoint": "https://minio:9000"}. Secrets in it are '
                "masked in logs.",
                "schema": {"type": ["object", "null"]},
            },
        },
    }
