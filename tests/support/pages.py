"""The page of streams as Airflow's API server mounts it, with its auth manager and a database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import lance
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_lance.streaming.epoch import Epoch, OutputMode, utc_now
from tests.support.supervised import ROWS, Supervised, here

PREFIX = "/lance"


@contextmanager
def airflow_of_its_own(folder: Path) -> Iterator[None]:
    """Give Airflow's models an empty database, and its auth manager two users."""
    from airflow import settings
    from airflow.api_fastapi.app import purge_cached_app
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.models.base import Base
    from airflow.models.connection import Connection
    from airflow.models.revoked_token import RevokedToken
    from airflow.models.team import Team

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
        models = (AssetActive, AssetModel, Connection, RevokedToken, Team)
        Base.metadata.create_all(settings.engine, tables=[each.__table__ for each in models])
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


class Site:
    """An API server with the page in it, seen by one viewer after the other."""

    def __init__(self, page: FastAPI) -> None:
        from airflow.api_fastapi.app import init_auth_manager

        root = FastAPI()
        self._manager = init_auth_manager(root)
        root.mount(PREFIX, page)
        self._client = TestClient(root)

    def token(self, role: str = "VIEWER") -> str:
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        return self._manager.generate_jwt(SimpleAuthManagerUser(username="eve", role=role))

    def ask(self, path: str, *, method: str = "GET", role: str | None = "VIEWER") -> Any:
        """Ask for a path below the page's prefix, as a role with its cookie, or as nobody."""
        self._client.cookies.clear()
        if role is not None:
            self._client.cookies.set("_token", self.token(role))
        return self._client.request(method, f"{PREFIX}{path}", follow_redirects=False)

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
        self.committer.commit(epoch)
        self.done(epoch_id)


def words(html: str) -> str:
    """Return what a viewer reads: without tags, and one space between words."""
    text = re.sub(r"<style>.*?</style>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())
