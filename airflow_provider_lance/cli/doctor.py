"""``lance-stream doctor``: whether this machine has what it needs and the store answers."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_lance.cli.diagnosis import Diagnosis, Level
from airflow_provider_lance.cli.doctor_packages import diagnose_packages
from airflow_provider_lance.cli.doctor_spark import diagnose_spark
from airflow_provider_lance.cli.exit_codes import Exit
from airflow_provider_lance.cli.output import Output
from airflow_provider_lance.cli.text import harmless
from airflow_provider_lance.exceptions import SpecError

__all__ = ["run"]

_STYLES = {
    Level.OK: "green",
    Level.NOTE: "",
    Level.WARNING: "yellow",
    Level.ERROR: "bold red",
    Level.UNKNOWN: "magenta",
}


def run(arguments: Namespace, output: Output) -> int:
    """Check everything, and say what to do about each problem."""
    if arguments.uri is None and (arguments.write_probe or arguments.conn_id):
        raise SpecError("--conn-id and --write-probe are about a dataset: name it, too")
    found = [*diagnose_packages(), *diagnose_spark()]
    if arguments.uri is not None:
        from airflow_provider_lance.cli.doctor_store import diagnose_store

        found += diagnose_store(arguments)
    status = _status(found)
    if output.json:
        diagnoses = [each.to_json() for each in found]
        output.document({"healthy": status is Exit.HEALTHY, "diagnoses": diagnoses})
    else:
        _show(found, output)
    return status


def _status(found: list[Diagnosis]) -> Exit:
    levels = {each.level for each in found}
    if Level.ERROR in levels:
        return Exit.UNHEALTHY
    return Exit.UNKNOWN if Level.UNKNOWN in levels else Exit.HEALTHY


def _show(found: list[Diagnosis], output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name in ("level", "name", "seen"):
        table.add_column(overflow="fold", no_wrap=name != "seen")
    for each in found:
        told = Text("\n".join(map(harmless, filter(None, (each.seen, each.advice)))))
        table.add_row(Text(each.level.value, _STYLES[each.level]), Text(harmless(each.name)), told)
    output.show(table)
