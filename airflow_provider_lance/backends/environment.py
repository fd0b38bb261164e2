"""The worker's environment variables that a driver inherits: an allow list and named additions.

A worker's environment holds Airflow's connections and keys, and a driver runs users' functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.compat import replace_submit_environment
from airflow_provider_lance.exceptions import SpecError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["driver_environment", "inherit_no_more"]

_SHELL = "PATH HOME USER LOGNAME SHELL HOSTNAME PWD TERM TMPDIR TMP TEMP LANG LANGUAGE TZ TZDIR"
_RUNTIME = (
    "LD_LIBRARY_PATH LD_PRELOAD JAVA_HOME JAVA_OPTS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS "
    "_JAVA_OPTIONS CLASSPATH VIRTUAL_ENV TOKIO_WORKER_THREADS RAYON_NUM_THREADS RUST_LOG "
    "RUST_BACKTRACE"
)
_NETWORK = (
    "HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy ftp_proxy "
    "all_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE"
)
_IDENTITIES = (  # of Kubernetes, and managed identities of Azure
    "KUBECONFIG IDENTITY_ENDPOINT IDENTITY_HEADER IDENTITY_SERVER_THUMBPRINT IMDS_ENDPOINT "
    "MSI_ENDPOINT MSI_SECRET"
)
_BEGINNINGS = (
    "LC_ XDG_ PYTHON PYSPARK_ SPARK_ CONDA_ HADOOP_ HDFS_ YARN_ MAPRED_ HIVE_ KRB5 KUBERNETES_ "
    "AWS_ AZURE_ GOOGLE_ CLOUDSDK_ GCE_ LANCE_ ARROW_ OMP_ OPENBLAS_ MKL_ NUMEXPR_ MALLOC_ "
    "AIRFLOW_CTX_"
)
_NAMES = frozenset(f"{_SHELL} {_RUNTIME} {_NETWORK} {_IDENTITIES}".split())
_PREFIXES = tuple(_BEGINNINGS.split())
_NEVER = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
"""Airflow's settings, connections and variables."""

_DEFAULTS = {"MALLOC_ARENA_MAX": "2"}
"""glibc gives each of Lance's threads an arena, which keeps the memory that a compaction has used.
A driver grew by 135 MiB in 9,500 epochs, and by 27 MiB with two arenas."""

_EXTRA = "driver-env"
_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


def driver_environment(connection: Connection, given: Mapping[str, Any] | None) -> dict[str, str]:
    """Return a driver's whole environment.

    It holds what Spark, Python, Java, Hadoop and the cloud SDKs read, the worker's variables that
    the Spark connection's extra ``driver-env`` names, and ``given``. ``MALLOC_ARENA_MAX`` is 2
    unless one of these has it.

    :param given: names and values that the user wrote for this driver.
    :raises SpecError: the extra has the wrong form, or names settings or secrets of Airflow.
    """
    names, prefixes = _named(connection)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NEVER)
        and (name in _NAMES or name in names or name.startswith(_PREFIXES + prefixes))
    }
    return _DEFAULTS | inherited | {name: str(value) for name, value in (given or {}).items()}


def inherit_no_more(hook: SparkSubmitHook, connection: Connection) -> None:
    """Make a hook's own ``submit`` pass a driver's environment only.

    The hook (6.3.4) adds its ``env_vars`` to the worker's whole environment: a variable that must
    not be passed gets the empty value.
    """
    replace_submit_environment(
        hook,
        lambda added: {**dict.fromkeys(os.environ, ""), **driver_environment(connection, added)},
    )


def _named(connection: Connection) -> tuple[frozenset[str], tuple[str, ...]]:
    given = connection.extra_dejson.get(_EXTRA) or []
    listed = [each.strip() for each in given.split(",")] if isinstance(given, str) else given
    who = f"Spark connection {connection.conn_id!r}: {_EXTRA}"
    if not isinstance(listed, list) or not all(
        isinstance(each, str) and _PATTERN.fullmatch(each) for each in listed
    ):
        raise SpecError(
            f"{who} must be a list of variables' names, such as ['COMPANY_REGION', 'VAULT_*'], got "
            f"{given!r}"
        )
    if secret := [each for each in listed if each.startswith(_NEVER)]:
        raise SpecError(
            f"{who} names {secret}, which hold Airflow's settings and secrets and are not passed "
            "on. Pass one value under a name of its own, with spark_submit={'env_vars': {…}}"
        )
    names = frozenset(each for each in listed if not each.endswith("*"))
    return names, tuple(each[:-1] for each in listed if each.endswith("*"))
