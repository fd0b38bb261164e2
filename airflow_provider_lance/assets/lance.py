"""Asset URIs of Lance datasets: one name for one dataset, without secrets.

``lance:///data/x.lance`` is the local ``/data/x.lance``; ``lance://s3/bucket/x.lance`` is
``s3://bucket/x.lance``: the store follows ``//``, then comes the bucket or container.
"""

from __future__ import annotations

import urllib.parse
from typing import Any
from urllib.parse import SplitResult

from airflow.sdk import Asset

from airflow_provider_lance.exceptions import SpecError

__all__ = ["asset_uri", "create_asset", "lance_asset", "sanitize_uri"]

_SCHEME = "lance"
_STORES = {"s3a": "s3", "s3n": "s3", "s3+ddb": "s3", "abfs": "abfss"}
"""Other names of one store."""
_LOCAL = {"file", "file-object-store"}
_CONTAINERS = {"abfss"}
"""Stores whose URIs contain ``container@account``, where others have a user."""

_PLAIN = "/%@:!$&'()*+,;="
"""The characters that stay unencoded in a path, and the percent sign of earlier encoding."""

# Without it, `urlunsplit` turns `lance:///x` into `lance:/x`. Airflow imports this module, for
# `sanitize_uri`, before it builds an asset's URI.
if _SCHEME not in urllib.parse.uses_netloc:
    urllib.parse.uses_netloc.append(_SCHEME)


def lance_asset(uri: str, **kwargs: Any) -> Asset:
    """Return the asset of a dataset, given its URI or path.

    :param uri: see :func:`asset_uri`.
    :param kwargs: further arguments of :class:`airflow.sdk.Asset`: ``name``, ``group``, ``extra``,
        ``watchers``; the name is the asset's URI if none is given.
    :raises SpecError: see :func:`asset_uri`.
    """
    return Asset(uri=asset_uri(uri), **kwargs)


def create_asset(*, uri: str, extra: dict[str, Any] | None = None) -> Asset:
    """Return the asset of a dataset; the factory that hook lineage calls."""
    return lance_asset(uri, extra=extra)


def asset_uri(dataset_uri: str) -> str:
    """Return the asset URI of a dataset's absolute path or URI; an asset URI stays unchanged.

    :raises SpecError: it is relative, empty or contains ``..``.
    """
    text = dataset_uri.strip()
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError as error:
        raise SpecError(f"{dataset_uri!r} is no URI: {error}") from None
    scheme = parts.scheme.lower()
    if text.startswith("/"):
        made = SplitResult(_SCHEME, "", urllib.parse.quote(text), "", "")
    elif scheme == _SCHEME:
        made = parts
    elif scheme in _LOCAL:
        made = SplitResult(_SCHEME, "", parts.path, "", "")
    elif scheme:
        made = SplitResult(_SCHEME, scheme, f"/{parts.netloc}{parts.path}", "", "")
    else:
        raise SpecError(
            f"an asset needs a name that is valid everywhere, and {dataset_uri!r} is relative: "
            "write 's3://bucket/table.lance' or '/data/table.lance'"
        )
    try:
        return urllib.parse.urlunsplit(sanitize_uri(made))
    except ValueError as error:
        raise SpecError(str(error)) from None


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return an asset URI of scheme ``lance`` in its canonical form; Airflow calls this for each.

    Users, passwords, queries and fragments are dropped: they may be secrets and identify nothing.

    :raises ValueError: the path is empty or leads upwards.
    """
    host = uri.netloc.rpartition("@")[2].lower()
    store = _STORES.get(host, host)
    segments = [segment for segment in uri.path.split("/") if segment not in {"", "."}]
    if store and segments:
        segments[0] = _without_user(store, segments[0])
    path = "/" + urllib.parse.quote("/".join(segments), safe=_PLAIN)
    if not segments:
        raise ValueError("an asset URI of scheme lance names a dataset; its path is empty")
    if ".." in urllib.parse.unquote(path).replace("\\", "/").split("/"):
        raise ValueError(f"'..' is not allowed in an asset URI, got the path {path!r}")
    return uri._replace(scheme=_SCHEME, netloc=store, path=path, query="", fragment="")


def _without_user(store: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if store in _CONTAINERS:
        return f"{user.partition(':')[0]}{at}{host}"
    return host
