"""The plugin that adds the page of streams to Airflow's web app."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

__all__ = ["LancePlugin"]

_PREFIX = "/lance"
"""Also in :func:`~airflow_provider_lance.links.lance.stream_url`, which need not import this."""


class LancePlugin(AirflowPlugin):
    """Show all known Lance streams below "Browse" in Airflow's navigation."""

    name = "lance"

    # Relative, so that it works below any `[api] base_url`; the slash at the end is needed.
    external_views = [  # noqa: RUF012
        {
            "name": "Lance streams",
            "href": f"{_PREFIX.removeprefix('/')}/",
            "url_route": "lance-streams",
            "destination": "nav",
            "category": "browse",
        }
    ]

    # Every Airflow process loads plugins, but only the API server uses this: no other process
    # imports FastAPI.
    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the page's application, created on first use."""
        from airflow_provider_lance.plugins.page.app import create_app

        return [{"app": create_app(), "url_prefix": _PREFIX, "name": "Lance streams"}]
