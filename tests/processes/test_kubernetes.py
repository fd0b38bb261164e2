"""A driver in Kubernetes, asked about with Airflow's own client; the API is a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.kubernetes_api import client_folder, kubernetes_api
from tests.support.processes import REPOSITORY, finish, python

from .conftest import AddConnection

pytestmark = pytest.mark.slow

ASK = """
import json, sys
from airflow_provider_lance.backends.launch import ClusterDriver

def asked(name):
    driver = ClusterDriver("kubernetes", name, "spark")
    return [driver.alive(), driver.exit_status(), driver.kill(), driver.end_note()]

print(json.dumps({name: asked(name) for name in sys.argv[1:]}))
"""
PODS = {
    "pending": (200, "Pending", 200),
    "running": (200, "Running", 200),
    "protected": (200, "Running", 403),
    "succeeded": (200, "Succeeded", 200),
    "failed": (200, "Failed", 200),
    "deleted": (404, "", 404),
    "forbidden": (403, "", 403),
    "broken": (500, "", 500),
}


def test_kubernetes_says_whether_a_driver_runs_and_how_it_ended(
    tmp_path: Path, add_connection: AddConnection
) -> None:
    add_connection("spark_default", conn_type="spark", host="k8s://https://127.0.0.1", port=1)
    path = os.pathsep.join([str(client_folder()), str(REPOSITORY)])
    with kubernetes_api(PODS, tmp_path) as environment:
        process = python("-c", ASK, *PODS, environment={**environment, "PYTHONPATH": path})
        status, output = finish(process)
    assert status == 0, output
    log = "its log: `kubectl logs {} -n spark`"
    assert json.loads(output.splitlines()[-1]) == {
        "pending": [True, None, True, ""],
        "running": [True, None, True, ""],
        "protected": [True, None, False, ""],
        "succeeded": [False, 0, False, log.format("succeeded")],
        "failed": [False, 1, False, log.format("failed")],
        "deleted": [False, None, False, ""],
        "forbidden": [None, None, False, ""],
        "broken": [None, None, False, ""],
    }
