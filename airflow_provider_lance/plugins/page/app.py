"""The page's application, for users who may read assets; who may edit them can acknowledge.

No route writes into a dataset, and no other route is open.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from airflow_provider_lance.links.lance import stream_address
from airflow_provider_lance.plugins.page.cache import CachedResult, ResultCache
from airflow_provider_lance.plugins.page.charts import day_pictures, pictures
from airflow_provider_lance.plugins.page.forms import form_key, read_form
from airflow_provider_lance.plugins.page.mutes import (
    HOURS,
    Mute,
    mute_of,
    muted,
    read_mutes,
    remove_mute,
    what_is_wrong,
)
from airflow_provider_lance.plugins.page.queries import Row, Stream, see_dataset, see_stream
from airflow_provider_lance.plugins.page.registry import (
    RegisteredDataset,
    find,
    known_datasets,
    merge,
    queries_of,
)
from airflow_provider_lance.plugins.page.rendering import Templates
from airflow_provider_lance.plugins.page.views import (
    Verdict,
    list_streams,
    sentence_of,
    summary,
    verdict_of,
    without_consumers,
    without_consumers_of,
)

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from starlette.middleware.base import RequestResponseEndpoint

    from airflow_provider_lance.diagnostics.status import Status

__all__ = ["create_app"]

REFRESH = 10
"""Seconds after which a page asks again; ``_SOON`` while a first answer is awaited."""
_SOON = 2
_LISTED = 20
"""The number of epochs in the table."""
_NOT_KNOWN = (
    "The page knows no such stream. It shows those of registered assets, of [lance] datasets, and "
    "of the DAGs that you may read."
)
_NOT_BEGUN = "the dataset has no record of this query yet: no driver of it has started"
_NOT_OURS = (
    "This form is out of date or of another site. Open the stream's page, and send it again."
)
_CHANGED = "What is wrong with this stream has changed. Read its page again before you acknowledge."


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
    may_edit = [Depends(requires_access_asset("POST"))]
    app.post("/acknowledge", dependencies=may_edit)(page.acknowledge)
    app.exception_handler(HTTPException)(page.refusal)
    app.middleware("http")(page.with_headers)
    return app


def _only(
    look: CachedResult[tuple[Row, ...]], queries: set[str] | None
) -> CachedResult[tuple[Row, ...]]:
    if queries is None:
        return look
    value, last = (
        None if rows is None else tuple(_own(row) for row in rows if row.query_id in queries)
        for rows in (look.value, look.last)
    )
    return replace(look, value=value, last=last)


def _own(row: Row) -> Row:
    return replace(row, status=without_consumers(row.status)) if row.status else row


@dataclass(frozen=True, slots=True)
class _Found:
    """A stream that the viewer may see.

    ``dags`` are those that stream it and that the viewer may read; ``registered`` says that the
    dataset is also known without them.
    """

    dataset: RegisteredDataset
    rows: CachedResult[tuple[Row, ...]]
    dags: set[str]
    registered: bool

    def status(self, query_id: str) -> Status | None:
        rows = self.rows.value or ()
        return next((row.status for row in rows if row.query_id == query_id), None)


def _may_edit(user: BaseUser, found: _Found) -> bool:
    """Return whether a user may acknowledge a stream: by its DAGs, if only these make it known."""
    manager = get_auth_manager()
    if not manager.is_authorized_asset(method="POST", user=user):
        return False
    return found.registered or bool(
        found.dags & manager.get_authorized_dag_ids(user=user, method="PUT")
    )


class _Page:
    def __init__(self, known: Callable[[], list[RegisteredDataset]]) -> None:
        self._templates = Templates()
        self._known: ResultCache[str, list[RegisteredDataset]] = ResultCache(lambda _: known())
        self._mutes: ResultCache[str, list[Mute]] = ResultCache(lambda _: read_mutes())
        self._datasets: ResultCache[RegisteredDataset, tuple[Row, ...]] = ResultCache(see_dataset)
        self._streams: ResultCache[tuple[RegisteredDataset, str], Stream] = ResultCache(
            lambda key: see_stream(*key)
        )

    async def streams(self, readable: ReadableDags) -> HTMLResponse:
        """Show all known streams."""
        [registered] = await self._known.at(["all"])
        every, dags = registered.value or [], readable
        known = merge(every, dags=dags)
        seen, mutes = await asyncio.gather(self._datasets.at(known), self._muted())
        looks = [
            _only(look, queries_of(each.uri, every, dags))
            for each, look in zip(known, seen, strict=True)
        ]
        lines = list_streams(zip(known, looks, strict=True), mutes)
        waits = any(look.value is None and not look.error for look in looks)
        return self._show(
            "streams.html",
            lines=lines,
            summary=summary(lines),
            error=registered.error,
            soon=_SOON if waits or registered.value is None else None,
        )

    async def stream(
        self,
        request: Request,
        user: GetUserDep,
        readable: ReadableDags,
        *,
        uri: str = "",
        query: str = "",
        conn_id: str | None = None,
    ) -> Response:
        """Show one stream, if it is a known one; or a dataset that is only read."""
        found = await self._find(readable, uri, query, conn_id)
        dataset, rows = found.dataset, found.rows
        if rows.value is None:
            return self._unreadable(dataset, query, rows)
        if query not in (row.query_id for row in rows.value):
            if found.dags:
                return self._unreadable(dataset, query, CachedResult(error=_NOT_BEGUN))
            raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_KNOWN)
        [look] = await self._streams.at([(dataset, query)])
        if look.value is None:
            return self._unreadable(dataset, query, look)
        seen = look.value
        findings, status = seen.report.findings, seen.status
        if not found.registered:
            findings = without_consumers_of(findings)
            status = status and without_consumers(status)
        # As the list sees it: what is acknowledged there must be the same.
        listed = found.status(query)
        mute = await self._mute(dataset, listed)
        return self._show(
            "stream.html",
            uri=dataset.uri,
            query_id=query,
            conn_id=dataset.conn_id,
            age=look.age,
            status=status,
            sentence=sentence_of(status) if status else "",
            verdict=verdict_of(status, mute) if status else Verdict("none", "only read"),
            mute=mute,
            wrong=" ".join(what_is_wrong(listed)) if listed else "",
            hours=HOURS,
            may_edit=_may_edit(user, found),
            form_key=form_key(request),
            findings=findings,
            consumers=seen.report.consumers if found.registered else (),
            quarantined=seen.quarantined,
            table=seen.table,
            rows=seen.table.rows[:_LISTED] if seen.table else (),
            charts=pictures(seen.table, seen.totals) if seen.table else (),
            day=day_pictures(seen.trend),
        )

    async def acknowledge(
        self, request: Request, user: GetUserDep, readable: ReadableDags
    ) -> Response:
        """Mute what is wrong with a stream for some hours, or take that back."""
        form = await read_form(request)
        if not hmac.compare_digest(form.get("key", "").encode(), form_key(request).encode()):
            raise HTTPException(HTTPStatus.FORBIDDEN, _NOT_OURS)
        uri, query, conn_id = form.get("uri", ""), form.get("query", ""), form.get("conn_id")
        found = await self._find(readable, uri, query, conn_id)
        if not _may_edit(user, found):
            raise HTTPException(HTTPStatus.FORBIDDEN, "Forbidden")
        status = found.status(query)
        hours = form.get("hours", "")
        if hours == "0":
            await run_in_threadpool(remove_mute, found.dataset.uri, query)
        elif status is None or form.get("wrong") != " ".join(what_is_wrong(status)):
            raise HTTPException(HTTPStatus.CONFLICT, _CHANGED)
        elif hours not in map(str, HOURS):
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"Hours are one of {HOURS}.")
        else:
            await run_in_threadpool(mute_of, found.dataset.uri, status, user.get_name(), int(hours))
        self._mutes.forget("all")
        address = stream_address(found.dataset.uri, query, found.dataset.conn_id)
        return RedirectResponse(address, HTTPStatus.SEE_OTHER)

    async def _find(self, readable: set[str], uri: str, query: str, conn_id: str | None) -> _Found:
        """Return a stream that the viewer may see.

        :raises HTTPException: they may not, or there is none.
        """
        [registered] = await self._known.at(["all"])
        every, dags = registered.value or [], readable
        dataset = find(merge(every, dags=dags), uri, conn_id)
        if dataset is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, registered.error or _NOT_KNOWN)
        allowed = queries_of(uri, every, dags)
        if allowed is not None and query not in allowed:
            raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_KNOWN)
        [look] = await self._datasets.at([dataset])
        rows = _only(look, allowed)
        own = {
            each.dag_id
            for each in every
            if each.uri == uri and each.query_id == query and each.dag_id in dags
        }
        return _Found(dataset, rows, own, allowed is None)

    async def _muted(self) -> Sequence[Mute]:
        [mutes] = await self._mutes.at(["all"])
        return mutes.value or ()  # without them the list shows more, never less

    async def _mute(self, dataset: RegisteredDataset, status: Status | None) -> Mute | None:
        if status is None:
            return None
        return muted(await self._muted(), dataset.uri, status, datetime.now(UTC))

    def _unreadable(
        self, dataset: RegisteredDataset, query_id: str, look: CachedResult[Any]
    ) -> HTMLResponse:
        return self._show(
            "unreadable.html",
            uri=dataset.uri,
            query_id=query_id,
            error=look.error,
            soon=None if look.error else _SOON,
        )

    async def refusal(self, request: Request, error: Exception) -> HTMLResponse:
        """Return the page for an error: not signed in, not allowed, not known, not a GET."""
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        login = f"../api/v2/auth/login?{urlencode({'next': back})}"
        shown = self._show("refusal.html", status=status, detail=str(error.detail), login=login)
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

    def _show(self, template: str, *, soon: int | None = None, **values: object) -> HTMLResponse:
        now, refresh = datetime.now(UTC), soon or REFRESH
        return HTMLResponse(self._templates.render(template, now=now, refresh=refresh, **values))
