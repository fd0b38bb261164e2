"""``python -m airflow_provider_lance.cli``, for use where the command is not on the PATH."""

from __future__ import annotations

import sys

from airflow_provider_lance.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
