"""Every command with its arguments. Imported by every ``airflow`` command."""

from __future__ import annotations

from airflow_provider_lance.cli.command_spec import (
    Argument,
    Command,
    argument,
    duration,
    number,
    pair,
    seconds,
)

__all__ = ["ABOUT", "COMMANDS", "TITLE"]

TITLE = "Inspect streams into Lance datasets, find what is wrong with them, and repair it"
ABOUT = (
    "Exit status: 0 healthy or done, 1 unhealthy, 2 wrong usage or a missing --yes, 3 store or "
    "driver unreachable. Results go to stdout, everything else to stderr."
)

_URI = argument(
    "uri", metavar="URI", help="the dataset: a path, or a URI such as s3://bucket/t.lance"
)
_QUERY = argument(
    "query_id",
    metavar="QUERY_ID",
    nargs="?",
    help="the streaming query; not needed if the dataset has only one",
)
_OUTPUT = argument(
    "-o",
    "--output",
    choices=("table", "json"),
    default="table",
    help="tables for people, or one JSON document",
)
_DEBUG = argument(
    "--debug", action="store_true", help="log everything, and show errors with their traceback"
)
_STORE: tuple[Argument, ...] = (
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
_CHECKPOINT = argument(
    "--checkpoint",
    metavar="LOCATION",
    help="the query's checkpoint as this machine reaches it, if not where the driver recorded it",
)
_COMMON = (*_STORE, _OUTPUT, _DEBUG)
_STREAM = (_URI, _QUERY, _CHECKPOINT, *_COMMON)
_PATIENCE = (
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
_YES = argument("--yes", action="store_true", help="execute; without it, only the plan is printed")
_DRY_RUN = argument(
    "--dry-run", action="store_true", help="print what would be done; change nothing"
)
_BY = argument("--by", metavar="NAME", help="who asks, for the record; by default user@host")
_DEADLINE = argument(
    "--deadline",
    metavar="DURATION",
    type=duration,
    help="begin nothing new after this time; the next run continues from there",
)
_DEAD = argument(
    "--proven-dead",
    action="store_true",
    help="you have checked on the driver's own host that it does not run; refused if this machine "
    "sees it alive",
)


def _a_number(flag: str, text: str) -> Argument:
    return argument(flag, metavar="N", type=number, help=text)


_STATUS = Command(
    "status",
    "how a stream is doing: one sentence, then the numbers",
    "airflow_provider_lance.cli.status:run",
    (*_STREAM, *_PATIENCE),
    description="How the dataset's streams are doing: one sentence each, then the numbers.",
)
_EPOCHS = Command(
    "epochs",
    "a query's newest epochs, Spark's progress beside the dataset's history",
    "airflow_provider_lance.cli.epochs:run",
    (
        *_STREAM,
        argument("--last", metavar="N", type=number, default=20, help="how many; 20 by default"),
        argument("--offsets", action="store_true", help="show the sources' offsets, too"),
    ),
)
_WATCH = Command(
    "watch",
    "follow a stream until Ctrl-C; one line per change where stdout is no terminal",
    "airflow_provider_lance.cli.watch:run",
    (
        *_STREAM,
        *_PATIENCE,
        argument(
            "--interval",
            metavar="SECONDS",
            type=seconds,
            default=2.0,
            help="time between two observations; 2 by default",
        ),
        _a_number("--count", "end after this many observations"),
        _a_number("--until-epoch", "end once this epoch is committed"),
    ),
    description="Follow a stream until Ctrl-C. Where stdout is no terminal, one line per change; "
    "with --output json, one JSON document per line and change.",
)
_CHECK = Command(
    "check",
    "compare dataset, checkpoint and driver: what is wrong, and what to type",
    "airflow_provider_lance.cli.check:run",
    (
        *_STREAM,
        *_PATIENCE,
        argument(
            "--fail-on",
            choices=("warning", "error", "critical"),
            default="error",
            help="exit 1 from this severity on; error by default",
        ),
        argument(
            "--no-orphans",
            action="store_true",
            help="do not list the data files to find those that no version references",
        ),
    ),
)
_STOP = Command(
    "stop",
    "ask a query's driver to stop after its current epoch",
    "airflow_provider_lance.cli.stop:run",
    (
        *_STREAM,
        argument(
            "--wait",
            metavar="DURATION",
            type=seconds,
            help="wait this long for the driver to stop; exits 1 if it has not stopped by then",
        ),
        _BY,
        _YES,
    ),
)
_RELEASE = Command(
    "release",
    "release a query whose driver is dead, so that the next one starts at once",
    "airflow_provider_lance.cli.repair:release",
    (*_STREAM, _DEAD, _BY, _YES),
)
_RESOLVE = Command(
    "resolve",
    "answer what only a person can decide",
    commands=(
        Command(
            "gap",
            "say whether the newest epoch in doubt was committed",
            "airflow_provider_lance.cli.repair:resolve_gap",
            (
                *_STREAM,
                argument(
                    "--epoch", metavar="N", type=number, required=True, help="the epoch in doubt"
                ),
                argument(
                    "--after-version",
                    metavar="N",
                    type=number,
                    help="refuse if the watermark was folded after this version; the check prints "
                    "it",
                ),
                argument("--committed", action="store_true", help="its rows are in the dataset"),
                argument("--missing", action="store_true", help="its rows are not in the dataset"),
                _DEAD,
                _BY,
                _YES,
            ),
        ),
        Command(
            "files",
            "set aside corrupt checkpoint files that Spark can provably do without",
            "airflow_provider_lance.cli.repair:resolve_files",
            (*_STREAM, _DEAD, _BY, _YES),
        ),
        Command(
            "checkpoint",
            "let a query continue from another checkpoint, with a new numbering of epochs",
            "airflow_provider_lance.cli.repair:resolve_checkpoint",
            (
                _URI,
                _QUERY,
                argument(
                    "--checkpoint",
                    metavar="LOCATION",
                    required=True,
                    help="the checkpoint to continue from",
                ),
                *_COMMON,
                _DEAD,
                _BY,
                _YES,
            ),
        ),
    ),
)
_FORGET = Command(
    "forget-consumer",
    "remove the record of a consumer that is not to run again: cleanup keeps nothing for it",
    "airflow_provider_lance.cli.repair:forget_consumer",
    (
        _URI,
        argument(
            "--consumer", metavar="ID", required=True, help="the consumer, as `status` lists it"
        ),
        *_COMMON,
        argument(
            "--proven-dead",
            action="store_true",
            help="you have checked that no driver of the consumer runs; needed while its position "
            "is younger than 6 hours",
        ),
        _DRY_RUN,
        _YES,
    ),
)
_OPTIMIZE = Command(
    "optimize",
    "compact small fragments and bring indices up to date, beside running streams",
    "airflow_provider_lance.cli.maintain:optimize",
    (
        _URI,
        *_COMMON,
        _a_number("--target-rows", "rows of a compacted fragment"),
        _a_number("--max-source-fragments", "compact at most this many fragments in this run"),
        _a_number("--max-source-rows", "compact at most this many rows in this run"),
        _a_number("--max-source-bytes", "compact at most this many bytes in this run"),
        _a_number("--min-small-fragments", "compact only if there are this many; 2 by default"),
        _a_number("--min-uncovered-rows", "refresh indices only if one lacks this many rows"),
        _DEADLINE,
        _DRY_RUN,
        _YES,
    ),
)
_CLEANUP = Command(
    "cleanup",
    "remove old versions, but nothing that the restart of a stream needs",
    "airflow_provider_lance.cli.maintain:cleanup",
    (
        _URI,
        *_COMMON,
        argument(
            "--older-than",
            metavar="DURATION",
            type=duration,
            help="remove versions older than this; 7d by default",
        ),
        _a_number("--retain-versions", "keep this many of the newest versions, however old"),
        _a_number("--min-old-versions", "clean up only if this many versions can be removed"),
        _a_number("--delete-rate-limit", "deletions per second"),
        argument(
            "--consumer-retention",
            metavar="DURATION",
            type=duration,
            help="keep what a consumer needs until its position is this old; 7d by default",
        ),
        argument(
            "--delete-unverified",
            action="store_true",
            help="also remove unreferenced files, however young; refused while a stream "
            "has not released its query",
        ),
        _DEADLINE,
        _DRY_RUN,
        _YES,
    ),
)
_DOCTOR = Command(
    "doctor",
    "check this machine: Python, Java, Spark, packages; with a URI, the store as well",
    "airflow_provider_lance.cli.doctor:run",
    (
        argument("uri", metavar="URI", nargs="?", help="a dataset to check"),
        _QUERY,
        _CHECKPOINT,
        *_COMMON,
        argument(
            "--write-probe",
            action="store_true",
            help="test whether the store refuses one of two commits of the same version, with a "
            "small dataset of a random name beside URI, which is removed at the end",
        ),
    ),
)

COMMANDS: tuple[Command, ...] = (
    _STATUS,
    _EPOCHS,
    _WATCH,
    _CHECK,
    _STOP,
    _RELEASE,
    _RESOLVE,
    _FORGET,
    _OPTIMIZE,
    _CLEANUP,
    _DOCTOR,
)
