"""The page of streams as Airflow's API server mounts it, with its auth manager and a database."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import lance
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_lance.protocol.model import Epoch, OutputMode, utc_now
from tests.support.supervised import ROWS, Supervised, here

PREFIX = "/lance"


@contextmanager
def airflow_of_its_own(folder: Path) -> Iterator[None]:
    """Give Airflow's models an empty database, and its auth manager two users."""
    import airflow.models
    from airflow import settings
    from airflow.api_fastapi.app import purge_cached_app
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.models.base import Base
    from airflow.models.connection import Connection
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.revoked_token import RevokedToken
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.team import Team, dag_bundle_team_association_table
    from airflow.models.variable import Variable
    from airflow.models.xcom import XComModel

    airflow.models.import_all_models()

    def configure() -> None:
        settings.dispose_orm(do_log=False)
        settings.configure_vars()
        settings.configure_orm()

    changes = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": f"{folder}/passwords.json",
        "AIRFLOW__API_AUTH__JWT_SECRET": "for-these-tests-only." * 4,
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        configure()
        models = (
            *(AssetActive, AssetModel, Connection, RevokedToken, Team, Variable),
            *(DagModel, DagBundleModel, DagRun, TaskInstance),
            *(RenderedTaskInstanceFields, XComModel),
        )
        tables = [each.__table__ for each in models] + [dag_bundle_team_association_table]
        Base.metadata.create_all(settings.engine, tables=tables)
        try:
            yield
        finally:
            purge_cached_app()
    configure()


def register(uri: str, extra: dict[str, Any] | None = None, *, active: bool = True) -> None:
    """Register an asset as the DAG processor does."""
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        asset = AssetModel(name=uri, uri=uri, group="asset", extra=extra or {})
        session.add(asset)
        session.flush()
        if active:
            session.add(AssetActive.for_asset(asset))


def let_stream(
    dag_id: str,
    rendered: dict[str, Any],
    *,
    run: int = 1,
    state: str = "deferred",
    link: str = "lance/stream",
    stale: bool = False,
) -> None:
    """Let a task stream as Airflow notes it: its run, its templates, the XCom of its link.

    :param run: the newer, the larger.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import insert, select, text

    name = {"dag_id": dag_id, "run_id": f"run-{run}", "task_id": "stream"}
    numbers = {"max_active_tasks": 1, "max_consecutive_failed_dag_runs": 0}
    with create_session() as session:
        session.execute(text("PRAGMA foreign_keys=OFF"))  # DAG versions, pools, log templates
        if session.scalar(select(DagModel.dag_id).where(DagModel.dag_id == dag_id)) is None:
            if session.scalar(select(DagBundleModel.name)) is None:
                session.execute(insert(DagBundleModel).values(name="dags"))
            flags = {"has_task_concurrency_limits": False, "is_stale": stale}
            row = {"dag_id": dag_id, "bundle_name": "dags", **numbers, **flags}
            session.execute(insert(DagModel).values(**row))
        run_id = session.execute(
            insert(DagRun).values(
                dag_id=dag_id,
                run_id=name["run_id"],
                run_type="manual",
                run_after=datetime(2026, 1, run, tzinfo=UTC),
                log_template_id=1,
            )
        ).inserted_primary_key[0]
        session.execute(insert(TaskInstance).values(**name, pool="default_pool", state=state))
        session.execute(insert(RenderedTaskInstanceFields).values(**name, rendered_fields=rendered))
        if link:
            key = {"key": "lance_stream_page", "value": link, "dag_run_id": run_id}
            session.execute(insert(XComModel).values(**name, **key))


class Site:
    """An API server with the page in it, seen by one viewer after the other."""

    def __init__(self, page: FastAPI) -> None:
        from airflow.api_fastapi.app import init_auth_manager

        root = FastAPI()
        self._manager = init_auth_manager(root)
        root.mount(PREFIX, page)
        self._client = TestClient(root)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the page for a browser; yield its address."""
        config = uvicorn.Config(self._client.app, port=0, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}{PREFIX}"
        finally:
            server.should_exit = True
            thread.join()

    def token(self, role: str = "VIEWER") -> str:
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        return self._manager.generate_jwt(SimpleAuthManagerUser(username="eve", role=role))

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        role: str | None = "VIEWER",
        form: dict[str, str] | None = None,
        token: str | None = None,
    ) -> Any:
        """Ask for a path below the page's prefix, as a role with its cookie, or as nobody.

        :param token: the session, to send a form in the one that got it.
        """
        self._client.cookies.clear()
        if token or role is not None:
            self._client.cookies.set("_token", token or self.token(role or ""))
        return self._client.request(method, f"{PREFIX}{path}", follow_redirects=False, data=form)

    def links(self, html: str) -> list[str]:
        """Return the streams that a list links to, as paths below the page's prefix."""
        return [f"/{unescape(found)}" for found in re.findall(r'href="(stream\?[^"]*)"', html)]


class Live(Supervised):
    """A stream whose driver lives: it commits, writes heartbeats, and Spark logs its epochs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.driver = self.process()
        self.committer = self.owner(here(self.driver))
        self.recent: list[dict[str, Any]] = []
        self.progress: dict[str, Any] | None = None
        self.done(0)

    def done(self, epoch_id: int) -> None:
        self.plan(epoch_id, commit=True)
        offsets = json.dumps({"logOffset": epoch_id})
        Path(self.checkpoint, "offsets", str(epoch_id)).write_text(f"v1\n{{}}\n{offsets}")
        version = self.committer.port.version
        self.recent.append(
            {
                "epoch": epoch_id,
                "version": version,
                "rows": 3,
                "fragments": 1,
                "writeMs": 20.0,
                "commitMs": 4.5,
                "batchMs": 250.0 + epoch_id,
                "at": utc_now(),
            }
        )
        self.beat(
            recent=self.recent,
            progress=self.progress,
            driver={
                "token": 1,
                "runId": "run",
                "launchId": self.launch_id,
                "uiAddress": "http://driver:4040",
                "host": here(self.driver).host,
                "pid": self.driver.pid,
                "start": here(self.driver).start,
            },
            sink={"epoch": epoch_id, "version": version, "watermark": epoch_id},
        )

    def commit(self, epoch_id: int) -> None:
        fragments = lance.fragment.write_fragments(ROWS, self.uri)
        epoch = Epoch(epoch_id, OutputMode.APPEND, fragments, len(ROWS), 0, utc_now())
        self.committer.begin(epoch_id).commit(epoch)
        self.done(epoch_id)


def words(html: str) -> str:
    """Return what a viewer reads: without tags, and one space between words."""
    text = re.sub(r"<(style|script)>.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())
