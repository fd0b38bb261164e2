"""Which datasets the page may look at: registered assets, and the option ``[lance] datasets``.

Whoever views the page names a dataset only among these: a URI that a viewer may choose would let
them read whatever the API server's host can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Known", "dataset_uri", "find", "known_datasets", "merge", "of_asset", "of_config"]

EXTRA = "lance_conn_id"
"""Where an asset's ``extra`` names its connection."""
_MOST = 500


@dataclass(frozen=True, slots=True)
class Known:
    """A dataset that somebody registered.

    ``conn_id`` is ``None`` where nobody named a connection, and empty where none is wanted.
    """

    uri: str
    conn_id: str | None = None


def known_datasets() -> list[Known]:
    """Return the registered datasets, in order, at most 500; asks Airflow's database."""
    from airflow.configuration import conf

    return merge(of_config(conf.get("lance", "datasets", fallback="") or ""), _assets())


def _assets() -> list[Known]:
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


def of_asset(uri: str, extra: Mapping[str, Any] | None) -> Known:
    """Return the dataset of an asset of scheme ``lance``."""
    conn_id = (extra or {}).get(EXTRA)
    return Known(dataset_uri(uri), conn_id if isinstance(conn_id, str) else None)


def of_config(text: str) -> list[Known]:
    """Read ``uri`` or ``uri#conn_id``, comma separated; ``uri#`` means without a connection."""
    found = []
    for entry in text.split(","):
        uri, mark, conn_id = entry.strip().rpartition("#") if "#" in entry else (entry, "", "")
        if uri := uri.strip().rstrip("/"):
            found.append(Known(uri, conn_id.strip() if mark else None))
    return found


def merge(*sources: Iterable[Known]) -> list[Known]:
    """Return each dataset once; one that names its connection stands for one that does not."""
    every = {each: None for source in sources for each in source}
    named = {each.uri for each in every if each.conn_id is not None}
    kept = (each for each in every if each.conn_id is not None or each.uri not in named)
    return sorted(kept, key=lambda each: (each.uri, each.conn_id or ""))[:_MOST]


def find(known: Iterable[Known], uri: str, conn_id: str | None) -> Known | None:
    """Return the known dataset of exactly this name, of any connection if none is given."""
    fits = (
        each for each in known if each.uri == uri and (conn_id is None or conn_id == each.conn_id)
    )
    return next(fits, None)


def dataset_uri(asset_uri: str) -> str:
    """Return the dataset's path or URI; the inverse of :func:`.assets.lance.asset_uri`."""
    parts = urlsplit(asset_uri)
    if parts.netloc:
        return f"{parts.netloc}:/{parts.path}"
    return unquote(parts.path)
