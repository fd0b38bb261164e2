"""Run one DAG by `dag.test()` in a fresh Airflow: `run_dag.py DAG_ID CONF_JSON [FOLDER]`.

The folder is `dags/` of the project, unless another is named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb

REPOSITORY = Path(__file__).parents[2]


def main(dag_id: str, conf: str, folder: str = str(REPOSITORY / "dags")) -> int:
    initdb()
    bag = DagBag(folder, bundle_name="dags-folder", bundle_path=Path(folder))
    run = bag.dags[dag_id].test(run_conf=json.loads(conf))
    states = {each.task_id: str(each.state) for each in run.get_task_instances()}
    print(json.dumps({"state": str(run.state), "tasks": states}))
    return 0 if str(run.state) == "success" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
