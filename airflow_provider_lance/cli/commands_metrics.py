"""The command ``metrics`` with its arguments. Imported by every ``airflow`` command."""

from __future__ import annotations

from airflow_provider_lance.cli.arguments import COMMON
from airflow_provider_lance.cli.command_spec import Command, argument, seconds

__all__ = ["METRICS"]

METRICS = Command(
    "metrics",
    "serve the checks of some datasets as metrics for Prometheus",
    "airflow_provider_lance.cli.metrics:run",
    (
        argument("uris", metavar="URI", nargs="*", help="the datasets"),
        *COMMON,
        argument(
            "--listen",
            metavar="HOST:PORT",
            default="127.0.0.1:9464",
            help="where to serve them; 127.0.0.1:9464 by default, port 0 for any that is free",
        ),
        argument(
            "--interval",
            metavar="DURATION",
            type=seconds,
            default=30.0,
            help="time between two checks of a dataset; 30 s by default",
        ),
        argument("--once", action="store_true", help="print them once, and serve nothing"),
        argument(
            "--all-queries",
            action="store_true",
            help="also queries that ended in good order and committed nothing for 7 days",
        ),
        argument(
            "--print",
            choices=("rules", "dashboard"),
            help="print Prometheus alert rules, or a Grafana dashboard, that use these metrics",
        ),
    ),
    description="Check some datasets again and again, and serve what is seen as metrics for "
    "Prometheus. A dataset that does not answer delays none of the others.",
)
