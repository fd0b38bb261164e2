"""``lance-stream resolve``: the repairs that need an answer of a person."""

from __future__ import annotations

from airflow_provider_lance.cli.arguments import BY, COMMON, DEAD, QUERY, STREAM, URI, YES
from airflow_provider_lance.cli.command_spec import Command, argument, epoch, epochs, number

__all__ = ["RESOLVE"]

RESOLVE = Command(
    "resolve",
    "answer what only a person can decide",
    commands=(
        Command(
            "gap",
            "say whether the newest epoch in doubt was committed",
            "airflow_provider_lance.cli.repair:resolve_gap",
            (
                *STREAM,
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
                DEAD,
                BY,
                YES,
            ),
        ),
        Command(
            "restore",
            "bring epochs back that a restored version removed, or continue without them",
            "airflow_provider_lance.cli.repair:resolve_restore",
            (
                *STREAM,
                argument(
                    "--bring-back",
                    action="store_true",
                    help="make the version from before the restore the newest again, or append "
                    "the removed epochs again if rows were written since",
                ),
                argument(
                    "--accept",
                    metavar="FIRST-LAST",
                    type=epochs,
                    help="continue without the rows of these epochs",
                ),
                DEAD,
                BY,
                YES,
            ),
        ),
        Command(
            "rewind",
            "take table and checkpoint back to the end of an epoch; what came after it is read "
            "from the source again",
            "airflow_provider_lance.cli.repair:resolve_rewind",
            (
                *STREAM,
                argument(
                    "--to-epoch",
                    metavar="N",
                    type=epoch,
                    help="the last epoch to keep; -1 keeps none",
                ),
                argument(
                    "--intact",
                    action="store_true",
                    help="keep what the newest version has whose data files exist",
                ),
                DEAD,
                BY,
                YES,
            ),
        ),
        Command(
            "files",
            "set aside corrupt checkpoint files that Spark can provably do without",
            "airflow_provider_lance.cli.repair:resolve_files",
            (*STREAM, DEAD, BY, YES),
        ),
        Command(
            "checkpoint",
            "let a query continue from another checkpoint, with a new numbering of epochs",
            "airflow_provider_lance.cli.repair:resolve_checkpoint",
            (
                URI,
                QUERY,
                argument(
                    "--checkpoint",
                    metavar="LOCATION",
                    help="the checkpoint to continue from, or its place",
                ),
                argument(
                    "--start-over",
                    action="store_true",
                    help="begin again with an empty checkpoint: the whole source is read again, "
                    "and no row is in the table twice",
                ),
                *COMMON,
                DEAD,
                BY,
                YES,
            ),
        ),
        Command(
            "side",
            "let a side table begin again that lost rows, without them",
            "airflow_provider_lance.cli.repair:resolve_side",
            (
                *STREAM,
                argument("--name", metavar="NAME", required=True, help="the side table"),
                DEAD,
                BY,
                YES,
            ),
        ),
        Command(
            "topics",
            "let a query go on with Kafka topics that have the same records under other ids",
            "airflow_provider_lance.cli.repair:resolve_topics",
            (*STREAM, DEAD, BY, YES),
        ),
        Command(
            "config",
            "put the config values of a query back that another tool or a person changed",
            "airflow_provider_lance.cli.repair:resolve_config",
            (*STREAM, DEAD, BY, YES),
        ),
        Command(
            "auto-cleanup",
            "switch off Lance's own auto-cleanup, which may remove what proves an epoch",
            "airflow_provider_lance.cli.repair:resolve_auto_cleanup",
            (URI, *COMMON, YES),
        ),
    ),
)
