"""The arguments that several commands take."""

from __future__ import annotations

from airflow_provider_lance.cli.command_spec import (
    Argument,
    argument,
    duration,
    number,
    pair,
    seconds,
)

__all__ = [
    "BY",
    "CHECKPOINT",
    "COMMON",
    "DEAD",
    "DEADLINE",
    "DEBUG",
    "DRY_RUN",
    "FLEET",
    "OUTPUT",
    "PATIENCE",
    "QUERY",
    "STREAM",
    "URI",
    "YES",
    "a_number",
]

URI = argument(
    "uri", metavar="URI", help="the dataset: a path, or a URI such as s3://bucket/t.lance"
)
URIS = argument(
    "uris",
    metavar="URI",
    nargs="*",
    help="one dataset, and its query if it has several: URI [QUERY_ID]; or several datasets. None "
    "with --all, and with --conn-id for all below the connection's base URI",
)
QUERY = argument(
    "query_id",
    metavar="QUERY_ID",
    nargs="?",
    help="the streaming query; not needed if the dataset has only one",
)
OUTPUT = argument(
    "-o",
    "--output",
    choices=("table", "json"),
    default="table",
    help="tables for people, or one JSON document",
)
DEBUG = argument(
    "--debug", action="store_true", help="log everything, and show errors with their traceback"
)
STORE: tuple[Argument, ...] = (
    argument(
        "--conn-id", metavar="ID", help="an Airflow connection of type lance; needs Airflow here"
    ),
    argument(
        "--storage-option",
        metavar="NAME=VALUE",
        dest="storage_option",
        type=pair,
        action="append",
        help="one of Lance's storage options, such as region=eu-central-1; no secrets. Repeatable",
    ),
    argument(
        "--storage-options-file",
        metavar="FILE",
        help="a JSON file with an object of storage options, secrets too",
    ),
)
TIMEOUT = argument(
    "--timeout",
    metavar="DURATION",
    type=seconds,
    default=30.0,
    help="wait at most this long for each answer of the store; 30s by default",
)
CHECKPOINT = argument(
    "--checkpoint",
    metavar="LOCATION",
    help="the query's checkpoint as this machine reaches it, if not where the driver recorded it",
)
COMMON = (*STORE, TIMEOUT, OUTPUT, DEBUG)
STREAM = (URI, QUERY, CHECKPOINT, *COMMON)
FLEET = (
    URIS,
    argument("--query", dest="query_id", metavar="QUERY_ID", help="the streaming query"),
    argument("--all", action="store_true", help="all streams that Airflow knows; needs Airflow"),
    argument(
        "-v", "--verbose", action="store_true", help="show several streams as one is shown, too"
    ),
    CHECKPOINT,
    *COMMON,
)
"""What a command takes that looks at many streams."""
PATIENCE = (
    argument(
        "--stall",
        metavar="SECONDS",
        type=seconds,
        help="an epoch that is planned and not committed for this long is stalled; 10m by default",
    ),
    argument(
        "--silence",
        metavar="SECONDS",
        type=seconds,
        help="a driver without a heartbeat for this long is lost; 2m by default",
    ),
)
YES = argument("--yes", action="store_true", help="execute; without it, only the plan is printed")
DRY_RUN = argument(
    "--dry-run", action="store_true", help="print what would be done; change nothing"
)
BY = argument("--by", metavar="NAME", help="who asks, for the record; by default user@host")
DEADLINE = argument(
    "--deadline",
    metavar="DURATION",
    type=duration,
    help="begin nothing new after this time; the next run continues from there",
)
DEAD = argument(
    "--proven-dead",
    action="store_true",
    help="you have checked on the driver's own host that it does not run; refused if this machine "
    "sees it alive",
)


def a_number(flag: str, text: str) -> Argument:
    """Declare an argument that is a whole number."""
    return argument(flag, metavar="N", type=number, help=text)
