"""What both spark-submit applications begin with: the log and the specification."""

from __future__ import annotations

import logging
import os

from pyspark import SparkFiles

__all__ = ["read_spec", "start_logging"]

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
