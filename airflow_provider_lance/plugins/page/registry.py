"""The datasets that the page may show: assets, what tasks stream into, and ``[lance] datasets``.

A viewer can only choose among these datasets: a URI of the viewer's choice would let them read
everything that the API server's host can read. For the same reason a task's dataset is read from
its rendered templates, which only Airflow writes, and not from its XComs, which users may edit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.lance import LanceStreamLink
from airflow_provider_lance.operators.specification import default_query_id

__all__ = [
    "RegisteredDataset",
    "dataset_uri",
    "find",
    "hook_of",
    "known_datasets",
    "merge",
    "of_asset",
    "of_config",
    "of_task",
    "queries_of",
]

EXTRA = "lance_conn_id"
"""The key of the connection in an asset's ``extra``."""
_MOST = 500


@dataclass(frozen=True, slots=True)
class RegisteredDataset:
    """A dataset that is registered, or that a task streams into.

    ``conn_id`` is ``None`` if no connection is given, and empty if none is to be used. ``query_id``
    and ``dag_id`` are those of the task, empty for a registered dataset; only users who may read
    that DAG may see it.
    """

    uri: str
    conn_id: str | None = None
    query_id: str = field(default="", compare=False)
    dag_id: str = field(default="", compare=False)


def known_datasets(hook: type[LanceHook] = LanceHook) -> list[RegisteredDataset]:
    """Return the datasets, at most 500 of each origin, with repetitions.

    Reads Airflow's database.

    :param hook: reads the connections, to which relative names are joined.
    """
    from airflow.configuration import conf

    registered = of_config(conf.get("lance", "datasets", fallback="") or "")
    return [*registered, *_assets(), *_of_tasks(hook)]


def _assets() -> list[RegisteredDataset]:
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = (
        select(AssetModel.uri, AssetModel.extra)
        .where(AssetModel.uri.startswith("lance:"), AssetModel.active.has())
        .order_by(AssetModel.uri)
        .limit(_MOST)
    )
    with create_session(scoped=False) as session:
        return [of_asset(uri, extra) for uri, extra in session.execute(wanted)]


def _of_tasks(hook: type[LanceHook]) -> list[RegisteredDataset]:
    """Return the datasets of tasks: each by its newest run, and by its active runs."""
    from airflow.models.dag import DagModel
    from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import and_, func, or_, select

    def same(one: Any, other: Any, *names: str) -> Any:
        return and_(*(getattr(one, name) == getattr(other, name) for name in names))

    task = ("dag_id", "task_id", "map_index")
    columns = [getattr(XComModel, name) for name in task]
    # The link's XCom shows which tasks stream; its key has an index.
    streams = XComModel.key == LanceStreamLink.xcom_key
    newest = (
        select(*columns, func.max(XComModel.dag_run_id).label("run"))
        .where(streams)
        .group_by(*columns)
        .subquery()
    )
    wanted = (
        select(Rendered.dag_id, Rendered.rendered_fields)
        .join(XComModel, and_(streams, same(Rendered, XComModel, *task, "run_id")))
        .join(TaskInstance, same(Rendered, TaskInstance, *task, "run_id"))
        .join(newest, same(XComModel, newest.c, *task))
        .join(DagModel, and_(DagModel.dag_id == Rendered.dag_id, DagModel.is_stale.is_(False)))
        .where(
            or_(
                XComModel.dag_run_id == newest.c.run,
                TaskInstance.state.in_(["running", "deferred"]),
            )
        )
        .order_by(XComModel.timestamp.desc())
        .limit(_MOST)
    )
    with create_session(scoped=False) as session:
        found = [of_task(dag_id, fields, hook) for dag_id, fields in session.execute(wanted)]
    return [each for each in found if each]


def of_task(
    dag_id: str, rendered: Mapping[str, Any], hook: type[LanceHook] = LanceHook
) -> RegisteredDataset | None:
    """Return the dataset of a task's rendered templates, ``None`` if they name none."""
    uri, query_id, conn_id = (rendered.get(name) for name in ("uri", "query_id", EXTRA))
    if isinstance(uri, str) and query_id is None:
        with suppress(LanceStreamError):
            query_id = default_query_id(uri)
    if not isinstance(uri, str) or not isinstance(query_id, str):
        return None
    conn_id = conn_id if isinstance(conn_id, str) else ""
    with suppress(LanceStreamError):  # opening it reports what is wrong
        uri = hook(conn_id or None).resolve(uri)
    return RegisteredDataset(uri, conn_id, query_id, dag_id)


def of_asset(uri: str, extra: Mapping[str, Any] | None) -> RegisteredDataset:
    """Return the dataset of an asset of scheme ``lance``."""
    conn_id = (extra or {}).get(EXTRA)
    return RegisteredDataset(dataset_uri(uri), conn_id if isinstance(conn_id, str) else None)


def of_config(text: str) -> list[RegisteredDataset]:
    """Read ``uri`` or ``uri#conn_id``, comma separated; ``uri#`` means without a connection."""
    found = []
    for entry in text.split(","):
        uri, separator, conn_id = entry.strip().rpartition("#") if "#" in entry else (entry, "", "")
        if uri := uri.strip().rstrip("/"):
            found.append(RegisteredDataset(uri, conn_id.strip() if separator else None))
    return found


def merge(
    *sources: Iterable[RegisteredDataset], dags: Collection[str] = ()
) -> list[RegisteredDataset]:
    """Return each dataset once; one that names its connection replaces one that does not.

    :param dags: the DAGs that the viewer may read.
    """
    open_to = {"", *dags}
    every = {each: None for source in sources for each in source if each.dag_id in open_to}
    named = {each.uri for each in every if each.conn_id is not None}
    kept = (each for each in every if each.conn_id is not None or each.uri not in named)
    return sorted(kept, key=lambda each: (each.uri, each.conn_id or ""))[:_MOST]


def queries_of(
    uri: str, known: Iterable[RegisteredDataset], dags: Collection[str]
) -> set[str] | None:
    """Return which queries of a known dataset may be shown, ``None`` for all of them.

    If the dataset is known only through DAGs, these are the queries of the readable DAGs.
    """
    named = [each for each in known if each.uri == uri]
    if any(not each.dag_id for each in named):
        return None
    return {each.query_id for each in named if each.dag_id in dags}


def find(
    known: Iterable[RegisteredDataset], uri: str, conn_id: str | None
) -> RegisteredDataset | None:
    """Return the known dataset with exactly this name, of any connection if none is given."""
    fits = (
        each for each in known if each.uri == uri and (conn_id is None or conn_id == each.conn_id)
    )
    return next(fits, None)


def dataset_uri(asset_uri: str) -> str:
    """Return the dataset's path or URI; the inverse of ``assets.lance.asset_uri``."""
    parts = urlsplit(asset_uri)
    if parts.netloc:
        return f"{parts.netloc}:/{parts.path}"
    return unquote(parts.path)


def hook_of(known: RegisteredDataset, hook: type[LanceHook] = LanceHook) -> LanceHook:
    """Return the hook that opens a known dataset: of its connection, or of the default one if any.

    :raises SpecError: the default connection is unreadable.
    """
    if known.conn_id is not None:
        return hook(known.conn_id or None)
    default = hook()
    return hook(None) if default.store.missing else default
