"""What a driver inherits of a worker's environment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_lance.backends.environment import driver_environment
from airflow_provider_lance.exceptions import SpecError

from .conftest import SECRET

SECRETS = (
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__API_AUTH__JWT_SECRET",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW_CONN_SPARK_DEFAULT",
    "AIRFLOW_VAR_TOKEN",
    "DATABASE_PASSWORD",
    "VAULT_TOKEN",
    "_AIRFLOW_JWT",
)
NEEDED = (
    "PATH",
    "HOME",
    "LC_ALL",
    "TZ",
    "JAVA_HOME",
    "JAVA_TOOL_OPTIONS",
    "PYTHONPATH",
    "PYSPARK_PYTHON",
    "SPARK_HOME",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "KRB5CCNAME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "https_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CLIENT_ID",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AIRFLOW_CTX_DAG_ID",
)


def connection(**extra: Any) -> Connection:
    return Connection(conn_id="spark_default", conn_type="spark", extra=json.dumps(extra))


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_of_the_worker_are_not_passed_to_the_driver(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, SECRET)
    assert name not in driver_environment(connection(), None)


@pytest.mark.parametrize("name", NEEDED)
def test_what_spark_and_the_cloud_need_is_passed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "needed")
    assert driver_environment(connection(), None)[name] == "needed"


@pytest.mark.parametrize("given", [["TEAM_REGION", "VAULT_*"], "TEAM_REGION, VAULT_*"])
def test_connection_names_further_variables_for_the_driver(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TEAM_REGION", "TEAM_REGION_2", "VAULT_ADDR", "VAULT_TOKEN"):
        monkeypatch.setenv(name, "here")
    passed = driver_environment(connection(**{"driver-env": given}), None)
    assert {"TEAM_REGION", "VAULT_ADDR", "VAULT_TOKEN"} <= set(passed)
    assert "TEAM_REGION_2" not in passed


def test_two_memory_arenas_are_the_default_and_the_worker_and_the_operator_may_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert driver_environment(connection(), None)["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert driver_environment(connection(), None)["MALLOC_ARENA_MAX"] == "4"
    assert driver_environment(connection(), {"MALLOC_ARENA_MAX": 8})["MALLOC_ARENA_MAX"] == "8"


def test_env_vars_of_the_operator_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    passed = driver_environment(connection(), {"AWS_REGION": "us-east-1", "RETRIES": 3})
    assert (passed["AWS_REGION"], passed["RETRIES"]) == ("us-east-1", "3")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["A B"], r"must be .*got \['A B'\]"),
        ("*", r"must be .*got '\*'"),
        ({"A": "1"}, "must be .*got {'A': '1'}"),
        ([1], r"must be .*got \[1\]"),
        (["AIRFLOW_CONN_*"], r"names \['AIRFLOW_CONN_\*'\]"),
        ("AIRFLOW__CORE__FERNET_KEY", r"names \['AIRFLOW__CORE__FERNET_KEY'\]"),
    ],
)
def test_invalid_driver_env_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match="'spark_default': driver-env " + message):
        driver_environment(connection(**{"driver-env": given}), None)


def test_a_prefix_never_brings_airflows_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", SECRET)
    monkeypatch.setenv("AIRFLOW_HOME", "/airflow")
    passed = driver_environment(connection(**{"driver-env": ["AIRFLOW*"]}), None)
    assert passed["AIRFLOW_HOME"] == "/airflow"
    assert SECRET not in passed.values()
