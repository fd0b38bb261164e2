"""Parts of all spark-submit applications here: read the specification, report the end."""

from __future__ import annotations

import logging
import os

from py4j.protocol import Py4JJavaError
from pyspark import SparkFiles
from pyspark.errors import PySparkException

__all__ = ["message_of", "read_spec", "start_logging"]

log = logging.getLogger(__name__)


def start_logging() -> None:
    """Log all warnings, and this package's messages, to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("airflow_provider_lance").setLevel(logging.INFO)


def read_spec(name: str, *, remove: bool) -> bytes:
    """Return a specification's JSON from a file of this host, or one that ``--files`` shipped.

    :param remove: delete the file once read.
    :raises OSError: the file does not exist or cannot be read.
    """
    path = name if os.path.exists(name) else SparkFiles.get(name)
    with open(path, "rb") as file:
        text = file.read()
    if remove:
        try:
            os.remove(path)
        except OSError as error:
            log.warning("The specification was not removed. error=%s", error)
    return text


def message_of(error: BaseException) -> str:
    """Return an error's message, without the JVM's stack trace that Spark's own errors repeat."""
    if isinstance(error, Py4JJavaError):
        return str(error).split("\n\tat ", 1)[0].strip()
    if isinstance(error, PySparkException):
        return str(error).split("\nJVM stacktrace", 1)[0].strip()
    return str(error)
