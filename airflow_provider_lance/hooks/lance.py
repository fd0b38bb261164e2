"""The connection type ``lance``: where Lance datasets are, and the options that open them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from airflow.sdk import BaseHook, Connection
from airflow.sdk.log import mask_secret

from airflow_provider_lance.compat import AirflowNotFoundException, conf
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decoding import json_value, shown
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.option_parsers import is_absolute, is_local, location, strings
from airflow_provider_lance.supervision.driver_reports import report_location

__all__ = ["LanceHook", "Store"]

# Storage options that say where and how, not who. Every other value is masked in logs: a new kind
# of key is hidden until it is listed here, instead of shown until the leak is noticed.
_HARMLESS = {
    "account_name",
    "allow_http",
    "allow_invalid_certificates",
    "bucket",
    "bucket_name",
    "client_max_retries",
    "connect_timeout",
    "container_name",
    "default_region",
    "download_retry_count",
    "region",
    "request_timeout",
    "skip_signature",
    "timeout",
    "use_emulator",
    "virtual_hosted_style_request",
}
_ENDPOINTS = {"endpoint", "endpoint_url"}
_NAMES_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Store:
    """A connection's content: where relative names and checkpoints are, and what opens them."""

    base_uri: str | None = None
    checkpoint_root: str | None = None
    storage_options: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )
    missing: bool = False
    """There is no such connection: only local paths can be opened."""

    @property
    def endpoint(self) -> str | None:
        """Return the endpoint of a store that is not the cloud vendor's own."""
        named = (value for name, value in self.storage_options.items() if _word(name) in _ENDPOINTS)
        return next(named, None)


class LanceHook(BaseHook):
    """
    Open Lance datasets and the checkpoints of the streams that write them.

    The connection's extra holds ``base_uri`` (the folder or bucket path that relative dataset names
    are joined to), ``checkpoint_root`` (the folder below which each query has its checkpoint) and
    ``storage_options`` (a JSON object, passed to Lance unchanged). For S3, login and password are
    short for ``aws_access_key_id`` and ``aws_secret_access_key``.

    ``lance_default`` need not exist for a dataset given by an absolute local path.

    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
    """

    conn_name_attr = "lance_conn_id"
    default_conn_name = "lance_default"
    conn_type = "lance"
    hook_name = "Lance"

    def __init__(self, lance_conn_id: str | None = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lance_conn_id = lance_conn_id

    @cached_property
    def store(self) -> Store:
        """
        Read the connection, once.

        :raises SpecError: there is no such connection, it has another type, or its extra cannot be
            read.
        """
        if self.lance_conn_id is None:
            return Store()
        try:
            connection = self.get_connection(self.lance_conn_id)
        except AirflowNotFoundException:
            if self.lance_conn_id == self.default_conn_name:
                return Store(missing=True)
            raise self._no_connection() from None
        store = _read(connection)
        for name, value in store.storage_options.items():
            if _word(name) not in _HARMLESS | _ENDPOINTS:
                mask_secret(value)
        return store

    def _no_connection(self) -> SpecError:
        return SpecError(
            f"there is no connection {self.lance_conn_id!r}: add it with `airflow connections "
            f"add {self.lance_conn_id} --conn-type lance --conn-extra "
            """'{"base_uri": "/data/lance"}'`, or set lance_conn_id=None and """
            "use absolute URIs"
        )

    def get_conn(self) -> Store:
        return self.store

    @property
    def storage_options(self) -> dict[str, str]:
        """Return the options that open the store, secrets included."""
        return dict(self.store.storage_options)

    @property
    def connection_arguments(self) -> str:
        """Return the arguments with which a typed command reaches the store."""
        return f"--conn-id {shlex.quote(self.lance_conn_id)}" if self.lance_conn_id else ""

    @property
    def airflow_url(self) -> str:
        """Return Airflow's address as ``[api] base_url`` has it, empty if it is not set."""
        return str(conf.get("api", "base_url", fallback="") or "")

    def resolve(self, uri: str) -> str:
        """
        Return an absolute URI: unchanged, or joined to the connection's base URI.

        :raises SpecError: empty, relative without a base URI, leading out of the base URI, or in a
            store that needs a connection which does not exist.
        """
        name = uri.strip().rstrip("/")
        if not name:
            raise SpecError(f"a dataset URI must not be empty, got {uri!r}")
        if name.startswith("/") or _NAMES_SCHEME.match(name):
            try:
                place = location(name)
            except ValueError as error:
                raise SpecError(f"a dataset URI must be {error}, got {shown(uri)}") from None
            # For another store, the environment's keys might open an unintended bucket.
            if not is_local(place) and self.store.missing:
                raise self._no_connection()
            return place
        if self.store.missing:
            raise self._no_connection()
        base = self.store.base_uri
        if base is None:
            where = f"connection {self.lance_conn_id!r} has" if self.lance_conn_id else "there is"
            raise SpecError(
                f"{uri!r} is a relative name and {where} no base URI to join it to: write an "
                "absolute URI such as 's3://bucket/table.lance' or '/data/table.lance', or set "
                "base_uri in a Lance connection"
            )
        # A store may decode %2e%2e, so it counts as what it stands for.
        if ".." in unquote(name).replace("\\", "/").split("/"):
            raise SpecError(f"{uri!r} leads out of the base URI: '..' is not allowed")
        return f"{base}/{posixpath.normpath(name)}"

    def checkpoint_location(self, query_id: str) -> str:
        """
        Return the default location of a query's checkpoint: below the checkpoint root.

        :raises SpecError: the connection has no checkpoint root, or the query id cannot name a
            folder there.
        """
        root = self.store.checkpoint_root
        if root is None:
            who = f"connection {self.lance_conn_id!r}"
            has = f"there is no {who}" if self.store.missing else f"{who} has no checkpoint_root"
            raise SpecError(
                f"query {query_id!r} has no checkpoint: checkpoint_location is not given, and "
                f"{has if self.lance_conn_id else 'there is no connection'} to take it from. Write "
                f"checkpoint_location='/data/checkpoints/{query_id}', or set checkpoint_root in "
                "the extra of a Lance connection"
            )
        place = f"{root}/{require_query_id(query_id)}"
        reports = report_location("")
        if query_id.endswith(reports):
            raise SpecError(
                f"query id {query_id!r} ends with {reports!r}, and {place!r} is where the driver "
                f"of query {query_id.removesuffix(reports)!r} keeps its reports: name "
                "checkpoint_location, or choose another query id"
            )
        return place

    def open(self, uri: str) -> LanceDatasetPort:
        """
        Open a dataset at its newest version for reading: Lance's caches are kept small.

        :raises DatasetNotFoundError: there is none.
        :raises StorageUnavailableError: the store did not answer or refused.
        """
        return open_dataset(
            self.resolve(uri), self.store.storage_options, cache_bytes=LOOK_CACHE_BYTES
        )

    def files(self, location: str) -> Files:
        """Open a location for small files, such as a checkpoint and its reports."""
        return open_files(self.resolve(location), self.store.storage_options)

    def test_connection(self) -> tuple[bool, str]:
        """List the base URI and return what is there, or what is wrong."""
        try:
            if self.store.missing:
                raise self._no_connection()
            base = self.store.base_uri
            if base is None:
                return True, "The connection can be read; it has no base URI to look into"
            names = self.files(base).names("")
        except LanceStreamError as error:
            return False, f"{type(error).__name__}: {error}"
        if names:
            found = sum(name.endswith(".lance") for name in names)
            return True, f"{base} answered: {len(names)} entries, {found} named *.lance"
        if base.startswith("/"):
            if not Path(base).is_dir():
                return (
                    False,
                    f"There is no folder {base} on this host; create it or correct base_uri",
                )
            return True, f"{base} is an empty folder"
        # S3 answers the same way for an empty place and for a bucket that does not exist.
        return True, f"{base} answered and lists nothing: still empty, or a misspelt bucket"


def _word(name: str) -> str:
    """Return a storage option's name without case and vendor, as Lance reads it."""
    word = name.lower()
    for vendor in ("aws_", "azure_storage_", "azure_", "google_"):
        word = word.removeprefix(vendor)
    return word


def _read(connection: Connection) -> Store:
    """Return a connection's content; pure."""
    who = f"connection {connection.conn_id!r}"
    if connection.conn_type != LanceHook.conn_type:
        raise SpecError(
            f"{who} is of type {connection.conn_type!r}, and a Lance connection is needed: name "
            "one of type 'lance' in lance_conn_id, or set lance_conn_id=None and use absolute URIs"
        )
    extra = _json_object(connection.extra, f"{who}: extra")
    given = _json_object(extra.get("storage_options"), f"{who}: storage_options in extra")
    base = extra.get("base_uri") or None
    if base is not None and not (isinstance(base, str) and is_absolute(base)):
        raise SpecError(
            f"{who}: base_uri must be an absolute path, such as '/data/lance', or a URI without "
            f"credentials, such as 's3://bucket/warehouse', got {shown(base)}"
        )
    root = extra.get("checkpoint_root") or None
    try:
        root = root and location(root)
    except ValueError as error:
        raise SpecError(f"{who}: checkpoint_root must be {error}, got {shown(root)}") from None
    options: dict[str, str] = {}
    for name, value in given.items():
        try:
            options |= strings({name: value})
        except ValueError:
            raise SpecError(
                f"{who}: storage option {shown(name)} must be a text, a number or true or false, "
                f"got {type(value).__name__}"
            ) from None
    if connection.login:
        options.setdefault("aws_access_key_id", connection.login)
    if connection.password:
        options.setdefault("aws_secret_access_key", connection.password)
    return Store(base.rstrip("/") if base else None, root, MappingProxyType(options))


def _json_object(value: object, what: str) -> dict[str, Any]:
    """Read a JSON object that may come as text; its content may be secret and is never quoted."""
    try:
        document = json_value(value) if isinstance(value, str) and value.strip() else value or {}
    except ValueError as error:
        raise SpecError(f"{what} is not {error}") from None
    if not isinstance(document, dict):
        raise SpecError(f"{what} must be a JSON object, got {type(document).__name__}")
    return document
