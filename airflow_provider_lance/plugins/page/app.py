"""The page's application: read only, for users who may read assets; no other route is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from airflow_provider_lance.plugins.page.cache import CachedResult, ResultCache
from airflow_provider_lance.plugins.page.charts import pictures
from airflow_provider_lance.plugins.page.queries import Row, Stream, see_dataset, see_stream
from airflow_provider_lance.plugins.page.registry import (
    RegisteredDataset,
    find,
    known_datasets,
    merge,
    queries_of,
)
from airflow_provider_lance.plugins.page.rendering import Templates
from airflow_provider_lance.plugins.page.views import list_streams, tone_of

if TYPE_CHECKING:
    from starlette.middleware.base import RequestResponseEndpoint

__all__ = ["create_app"]

REFRESH = 10
"""Seconds after which a page reloads itself."""
_LISTED = 20
"""The number of epochs in the table."""
_NOT_KNOWN = (
    "The page knows no such stream. It shows those of registered assets, of [lance] datasets, and "
    "of the DAGs that you may read."
)
_NOT_BEGUN = "the dataset has no record of this query yet: no driver of it has started"


def _readable_dags(user: GetUserDep) -> set[str]:
    # Airflow's own ReadableDagsFilterDep finds its auth manager in the API server's root app only.
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


ReadableDags = Annotated[set[str], Depends(_readable_dags)]


def create_app(known: Callable[[], list[RegisteredDataset]] = known_datasets) -> FastAPI:
    """Return the application, to be mounted by Airflow's API server.

    :param known: returns the datasets that may be shown; called in a thread.
    """
    page = _Page(known)
    app = FastAPI(
        title="Lance streams",
        # On all routes, so that none can be forgotten.
        dependencies=[Depends(requires_access_asset("GET"))],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.get("/")(page.streams)
    app.get("/stream")(page.stream)
    app.exception_handler(HTTPException)(page.refusal)
    app.middleware("http")(page.with_headers)
    return app


def _only(
    look: CachedResult[tuple[Row, ...]], queries: set[str] | None
) -> CachedResult[tuple[Row, ...]]:
    if queries is None or look.value is None:
        return look
    return replace(look, value=tuple(row for row in look.value if row.query_id in queries))


class _Page:
    def __init__(self, known: Callable[[], list[RegisteredDataset]]) -> None:
        self._templates = Templates()
        self._known: ResultCache[str, list[RegisteredDataset]] = ResultCache(
            lambda _: known(), threads=1
        )
        self._datasets: ResultCache[RegisteredDataset, tuple[Row, ...]] = ResultCache(see_dataset)
        self._streams: ResultCache[tuple[RegisteredDataset, str], Stream] = ResultCache(
            lambda key: see_stream(*key)
        )

    async def streams(self, readable: ReadableDags) -> HTMLResponse:
        """Show all known streams."""
        [registered] = await self._known.at(["all"])
        every, dags = registered.value or [], readable
        known = merge(every, dags=dags)
        looks = [
            _only(look, queries_of(each.uri, every, dags))
            for each, look in zip(known, await self._datasets.at(known), strict=True)
        ]
        lines = list_streams(zip(known, looks, strict=True))
        return self._show("streams.html", lines=lines, error=registered.error)

    async def stream(
        self,
        readable: ReadableDags,
        uri: str = "",
        query: str = "",
        conn_id: str | None = None,
    ) -> Response:
        """Show one stream, if it is a known one."""
        [registered] = await self._known.at(["all"])
        every, dags = registered.value or [], readable
        dataset = find(merge(every, dags=dags), uri, conn_id)
        if dataset is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, registered.error or _NOT_KNOWN)
        [rows] = await self._datasets.at([dataset])
        if rows.value is None:
            return self._unreadable(dataset, query, rows)
        allowed = queries_of(uri, every, dags)
        if allowed is not None and query not in allowed:
            raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_KNOWN)
        if query not in (row.query_id for row in rows.value):
            of_dag = {each.query_id for each in every if each.uri == uri and each.dag_id in dags}
            if query in of_dag:
                return self._unreadable(dataset, query, CachedResult(error=_NOT_BEGUN))
            raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_KNOWN)
        [look] = await self._streams.at([(dataset, query)])
        if look.value is None:
            return self._unreadable(dataset, query, look)
        seen, every_query = look.value, allowed is None
        # A consumer names its own dataset and query, which may be those of another team's DAG.
        findings = [
            each
            for each in seen.report.findings
            if every_query or "consumerId" not in each.evidence
        ]
        return self._show(
            "stream.html",
            uri=dataset.uri,
            query_id=query,
            age=look.age,
            status=seen.status,
            tone=tone_of(seen.status) if seen.status else "bad",
            findings=findings,
            consumers=seen.report.consumers if every_query else (),
            table=seen.table,
            rows=seen.table.rows[:_LISTED] if seen.table else (),
            charts=pictures(seen.table, seen.totals) if seen.table else (),
        )

    def _unreadable(
        self, dataset: RegisteredDataset, query_id: str, look: CachedResult[Any]
    ) -> HTMLResponse:
        return self._show("unreadable.html", uri=dataset.uri, query_id=query_id, error=look.error)

    async def refusal(self, request: Request, error: Exception) -> HTMLResponse:
        """Return the page for an error: not signed in, not allowed, not known, not a GET."""
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        shown = self._show("refusal.html", status=status, detail=str(error.detail))
        return HTMLResponse(shown.body, status, headers=error.headers)

    async def with_headers(self, request: Request, respond: RequestResponseEndpoint) -> Response:
        """Add headers that keep a browser from doing more with a page than showing it."""
        response = await respond(request)
        response.headers.update(
            {
                "Content-Security-Policy": self._templates.policy,
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "SAMEORIGIN",
            }
        )
        return response

    def _show(self, template: str, **values: object) -> HTMLResponse:
        now = datetime.now(UTC)
        return HTMLResponse(self._templates.render(template, now=now, refresh=REFRESH, **values))
