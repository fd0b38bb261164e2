"""`python -m tests.system.stock [EVENT ...]`: what Airflow's own SparkSubmitOperator does alone."""

from __future__ import annotations

import sys

from tests.system.compare import main

if __name__ == "__main__":
    sys.exit(main(["stock", *sys.argv[1:]]))
