"""Every command with its arguments. Imported by every ``airflow`` command."""

from __future__ import annotations

from airflow_provider_lance.cli.arguments import (
    BY,
    CHECKPOINT,
    COMMON,
    DEAD,
    DEADLINE,
    DEBUG,
    DRY_RUN,
    FLEET,
    OUTPUT,
    PATIENCE,
    QUERY,
    STREAM,
    URI,
    YES,
    a_number,
)
from airflow_provider_lance.cli.command_spec import (
    Command,
    argument,
    duration,
    number,
    seconds,
)
from airflow_provider_lance.cli.commands_metrics import METRICS
from airflow_provider_lance.cli.commands_resolve import RESOLVE

__all__ = ["ABOUT", "COMMANDS", "TITLE"]

TITLE = "Inspect streams into Lance datasets, find what is wrong with them, and repair it"
ABOUT = (
    "Exit status: 0 healthy or done, 1 unhealthy, 2 wrong usage or a missing --yes, 3 store or "
    "driver unreachable. Results go to stdout, everything else to stderr."
)

_STATUS = Command(
    "status",
    "how a stream is doing: one sentence, then the numbers",
    "airflow_provider_lance.cli.status:run",
    (*FLEET, *PATIENCE),
    description="How streams are doing. One stream: a sentence, what is wrong, the numbers, what "
    "changed. Several: one line each, worst first.",
)
_EPOCHS = Command(
    "epochs",
    "a query's newest epochs, Spark's progress beside the dataset's history",
    "airflow_provider_lance.cli.epochs:run",
    (
        *STREAM,
        argument("--last", metavar="N", type=number, default=20, help="how many; 20 by default"),
        argument("--offsets", action="store_true", help="show the sources' offsets, too"),
    ),
)
_WATCH = Command(
    "watch",
    "follow a stream until Ctrl-C; one line per change where stdout is no terminal",
    "airflow_provider_lance.cli.watch:run",
    (
        *STREAM,
        *PATIENCE,
        argument(
            "--interval",
            metavar="SECONDS",
            type=seconds,
            default=2.0,
            help="time between two observations; 2 by default",
        ),
        a_number("--count", "end after this many observations"),
        a_number("--until-epoch", "end once this epoch is committed"),
    ),
    description="Follow a stream until Ctrl-C. Where stdout is no terminal, one line per change; "
    "with --output json, one JSON document per line and change.",
)
_CHECK = Command(
    "check",
    "compare dataset, checkpoint and driver: what is wrong, and what to type",
    "airflow_provider_lance.cli.check:run",
    (
        *FLEET,
        *PATIENCE,
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
        *STREAM,
        argument(
            "--wait",
            metavar="DURATION",
            type=seconds,
            help="wait this long for the driver to stop; exits 1 if it has not stopped by then",
        ),
        BY,
        YES,
    ),
)
_RELEASE = Command(
    "release",
    "release a query whose driver is dead, so that the next one starts at once",
    "airflow_provider_lance.cli.repair:release",
    (
        *STREAM,
        argument(
            "--for-good",
            action="store_true",
            help="the stream is not to run again: `check` calls it stopped, and not lost",
        ),
        DEAD,
        BY,
        YES,
    ),
)
_CLEAR_TASK = Command(
    "clear-task",
    "clear one task instance in Airflow's database, so that the stream that it runs starts again",
    "airflow_provider_lance.cli.clear_task:run",
    (
        argument("dag_id", metavar="DAG", help="the DAG"),
        argument("run_id", metavar="RUN", help="the run"),
        argument("task_id", metavar="TASK", help="the task"),
        a_number("--map-index", "which instance of a mapped task"),
        OUTPUT,
        DEBUG,
        YES,
    ),
)
_FORGET = Command(
    "forget-consumer",
    "remove the record of a consumer that is not to run again: cleanup keeps nothing for it",
    "airflow_provider_lance.cli.repair:forget_consumer",
    (
        URI,
        argument(
            "--consumer", metavar="ID", required=True, help="the consumer, as `status` lists it"
        ),
        *COMMON,
        argument(
            "--proven-dead",
            action="store_true",
            help="you have checked that no driver of the consumer runs; needed while its position "
            "is younger than 6 hours",
        ),
        DRY_RUN,
        YES,
    ),
)
_QUARANTINE = Command(
    "quarantine",
    "list the rows that did not land, export them, and write mended rows back",
    "airflow_provider_lance.cli.quarantine:run",
    (
        URI,
        QUERY,
        *COMMON,
        argument("--last", metavar="N", type=number, default=10, help="newest rows; 10 by default"),
        argument("--reason", metavar="TEXT", help="only rows with exactly this reason"),
        argument(
            "--export",
            metavar="FILE",
            help="write the rows that are not fed into a new file, as JSON lines",
        ),
        argument("--feed", metavar="FILE", help="write the mended rows of such a file back"),
        argument(
            "--replace",
            action="store_true",
            help="fed rows may replace rows of the table that have their merge keys",
        ),
        YES,
    ),
)
_OPTIMIZE = Command(
    "optimize",
    "compact small fragments and bring indices up to date, beside running streams",
    "airflow_provider_lance.cli.maintain:optimize",
    (
        URI,
        *COMMON,
        a_number("--target-rows", "rows of a compacted fragment"),
        a_number("--max-source-fragments", "compact at most this many fragments in this run"),
        a_number("--max-source-rows", "compact at most this many rows in this run"),
        a_number("--max-source-bytes", "compact at most this many bytes in this run"),
        a_number("--min-small-fragments", "compact only if there are this many; 2 by default"),
        a_number("--min-uncovered-rows", "refresh indices only if one lacks this many rows"),
        DEADLINE,
        DRY_RUN,
        YES,
    ),
)
_CLEANUP = Command(
    "cleanup",
    "remove old versions, but nothing that the restart of a stream needs",
    "airflow_provider_lance.cli.maintain:cleanup",
    (
        URI,
        *COMMON,
        argument(
            "--older-than",
            metavar="DURATION",
            type=duration,
            help="remove versions older than this; 7d by default",
        ),
        a_number("--retain-versions", "keep this many of the newest versions, however old"),
        a_number(
            "--min-old-versions",
            "clean up only if this many versions can be removed; 0 by default, which also removes "
            "week-old files that no version references",
        ),
        a_number("--delete-rate-limit", "deletions per second"),
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
        DEADLINE,
        DRY_RUN,
        YES,
    ),
)
_DOCTOR = Command(
    "doctor",
    "check this machine: Python, Java, Spark, packages; with a URI, the store as well",
    "airflow_provider_lance.cli.doctor:run",
    (
        argument("uri", metavar="URI", nargs="?", help="a dataset to check"),
        QUERY,
        CHECKPOINT,
        *COMMON,
        argument(
            "--write-probe",
            action="store_true",
            help="test whether the store refuses one of two commits of the same version, with a "
            "small dataset of a random name beside URI, which is removed at the end",
        ),
        argument(
            "--packages",
            metavar="COORDINATES",
            help="what a stream's operator gets as packages: check whether its Kafka connector "
            "is of Spark's version",
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
    _CLEAR_TASK,
    RESOLVE,
    _FORGET,
    _QUARANTINE,
    _OPTIMIZE,
    _CLEANUP,
    METRICS,
    _DOCTOR,
)
