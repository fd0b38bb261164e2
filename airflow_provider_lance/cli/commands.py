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

TITLE = "Look at streams into Lance datasets, find what is wrong with them, and mend it"
ABOUT = (
    "Exit status: 0 healthy or done, 1 unhealthy, 2 wrong usage or a missing --yes, 3 could not "
    "tell. Results go to stdout, everything else to stderr."
)

_URI = argument(
    "uri", metavar="URI", help="the dataset: a path, or a URI such as s3://bucket/t.lance"
)
_QUERY = argument(
    "query_id",
    metavar="QUERY_ID",
    nargs="?",
    help="the streaming query; may be left out where the dataset has one only",
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
        help="an epoch planned and not committed for so long is stalled; 10m by default",
    ),
    argument(
        "--silence",
        metavar="SECONDS",
        type=seconds,
        help="no heartbeat for so long is trouble; 2m by default",
    ),
)
_YES = argument("--yes", action="store_true", help="do it; without, the plan is printed")
_DRY_RUN = argument("--dry-run", action="store_true", help="say what would be done, change nothing")
_BY = argument("--by", metavar="NAME", help="who asks, for the record; by default user@host")
_DEADLINE = argument(
    "--deadline",
    metavar="DURATION",
    type=duration,
    help="begin nothing new after so long; the next run goes on from there",
)
_DEAD = argument(
    "--proven-dead",
    action="store_true",
    help="you have made sure that the driver does not run, on its own host; where this machine "
    "sees it alive, it is refused all the same",
)


def _a_number(flag: str, text: str) -> Argument:
    return argument(flag, metavar="N", type=number, help=text)


_STATUS = Command(
    "status",
    "how a stream does: one sentence, then the numbers",
    "airflow_provider_lance.cli.status:run",
    (*_STREAM, *_PATIENCE),
    description="How the dataset's streams do: one sentence each, then the numbers.",
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
            help="between two looks; 2 by default",
        ),
        _a_number("--count", "end after so many looks"),
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
            help="do not list the data files to find those that no version names",
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
            help="wait so long until it has; exits 1 if it has not",
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
    "answer what only a person can know",
    commands=(
        Command(
            "gap",
            "say of the newest epoch in doubt whether it was committed",
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
                    help="refuse if the watermark was folded after this version, as the check "
                    "names it",
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
            "set corrupt files of the checkpoint aside that Spark can provably do without",
            "airflow_provider_lance.cli.repair:resolve_files",
            (*_STREAM, _DEAD, _BY, _YES),
        ),
        Command(
            "checkpoint",
            "let a query go on from another checkpoint, in a new generation of epochs",
            "airflow_provider_lance.cli.repair:resolve_checkpoint",
            (
                _URI,
                _QUERY,
                argument(
                    "--checkpoint",
                    metavar="LOCATION",
                    required=True,
                    help="the checkpoint to go on from",
                ),
                *_COMMON,
                _DEAD,
                _BY,
                _YES,
            ),
        ),
    ),
)
_OPTIMIZE = Command(
    "optimize",
    "compact small fragments and bring indices up to date, beside running streams",
    "airflow_provider_lance.cli.maintain:optimize",
    (
        _URI,
        *_COMMON,
        _a_number("--target-rows", "make fragments of so many rows"),
        _a_number("--max-source-fragments", "compact at most so many fragments in this run"),
        _a_number("--max-source-rows", "compact at most so many rows in this run"),
        _a_number("--max-source-bytes", "compact at most so many bytes in this run"),
        _a_number("--min-small-fragments", "compact only if there are so many; 2 by default"),
        _a_number("--min-uncovered-rows", "refresh indices only if one lacks so many rows"),
        _DEADLINE,
        _DRY_RUN,
        _YES,
    ),
)
_CLEANUP = Command(
    "cleanup",
    "remove old versions, and nothing that a restart of a stream needs",
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
        _a_number("--retain-versions", "keep so many of the newest versions, however old"),
        _a_number("--min-old-versions", "clean up only if so many versions can go"),
        _a_number("--delete-rate-limit", "deletions per second"),
        argument(
            "--delete-unverified",
            action="store_true",
            help="remove files that no version names, too, however young; refused while a stream "
            "has not released its query",
        ),
        _DEADLINE,
        _DRY_RUN,
        _YES,
    ),
)
_DOCTOR = Command(
    "doctor",
    "look at this machine: Python, Java, Spark, packages; with a URI, at the store as well",
    "airflow_provider_lance.cli.doctor:run",
    (
        argument("uri", metavar="URI", nargs="?", help="a dataset to try out"),
        _QUERY,
        _CHECKPOINT,
        *_COMMON,
        argument(
            "--write-probe",
            action="store_true",
            help="try whether the store refuses one of two commits of the same version, with a "
            "small dataset of a random name beside URI that is removed at the end",
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
    _OPTIMIZE,
    _CLEANUP,
    _DOCTOR,
)
