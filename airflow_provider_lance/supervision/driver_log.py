"""What a driver's log says of its end: its summary, or its last error; pure.

A driver prints its summary. If it cannot write beside the checkpoint, or Spark did not start, the
log is the only place that holds the cause.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from airflow_provider_lance.exceptions import SpecError, TerminalError, error_class
from airflow_provider_lance.supervision.driver_reports import Summary

__all__ = ["LastError", "is_certain", "last_error", "summary_in"]

_LONGEST = 2000
_ERROR = re.compile(
    r'Exception in thread "[^"]*" (?P<thrown>.+)'
    r"|(?P<raised>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?:: .*)?)"
    r"|\S+ [\d:.,]+ (?:ERROR|FATAL|CRITICAL) (?P<logged>.+)"
    r"|(?P<shell>Error: (?!A fatal exc|Could not create the Java).+|Invalid \w+ heap size.*"
    r"|Error occurred during .+|JAVA_HOME is not set.*|.+: command not found"
    r"|.+: No such file or directory|Could not find valid SPARK_HOME.*"
    r"|Unrecognized (?:VM )?option.+)"
)
_OURS = re.compile(r"(?:airflow_provider_lance\.exceptions\.)?([A-Z]\w*Error): (.*)", re.DOTALL)
_CERTAIN = re.compile(
    r"Master must |Could not parse Master URL|A master URL must be set|HADOOP_CONF_DIR or YARN_CONF"
    r"|^(?:ModuleNotFoundError|ImportError|SyntaxError)\b|JAVA_HOME is not set|command not found"
    r"|: No such file or directory$|Invalid \w+ heap size|SPARK_HOME"
    r"|Unrecognized (?:VM )?option|UnsupportedClassVersion"
    r"|Error: (?:Missing|Invalid|Could not find or load|Unrecognized|Failed to load class)"
)
"""Messages of spark-submit, Java and Python for a mistake that every further start would repeat."""


@dataclass(frozen=True, slots=True)
class LastError:
    """The newest error in a driver's log.

    ``error`` is the name of a terminal class of :mod:`~airflow_provider_lance.exceptions`, empty
    for any other error.
    """

    error: str
    message: str


def is_certain(error: str) -> bool:
    """Return whether an error of this name would recur after every restart."""
    return issubclass(error_class(error), TerminalError)


def summary_in(text: str, launch_id: str) -> Summary | None:
    """Return the summary that a launch printed, ``None`` if there is none."""
    for line in reversed(text.splitlines()):
        if not (line.startswith("{") and launch_id in line):
            continue
        try:
            found = Summary.read_json(json.loads(line))
        except (ValueError, RecursionError):
            continue
        if found.launch_id == launch_id:
            return found
    return None


def last_error(text: str) -> LastError | None:
    """Return the last error in a log, without stack traces; ``None`` if there is none."""
    for line in reversed(text.splitlines()):
        if said := _error(line):
            ours = _OURS.fullmatch(said)
            if ours and is_certain(ours[1]):
                return LastError(ours[1], ours[2][:_LONGEST])
            certain = SpecError.__name__ if _CERTAIN.search(said) else ""
            return LastError(certain, said[:_LONGEST])
    return None


def _error(line: str) -> str | None:
    if line.startswith("{"):
        return _structured(line)
    found = _ERROR.fullmatch(line.rstrip())
    return next(filter(None, found.groups()), None) if found else None


def _structured(line: str) -> str | None:
    """Read a line of Spark's structured logging."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("level") not in ("ERROR", "FATAL"):
        return None
    return str(document.get("msg") or "") or None
