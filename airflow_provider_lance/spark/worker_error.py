"""An error that ended a Python worker, as the driver sees it: only its trace arrives."""

from __future__ import annotations

import re

from pyspark.errors import PythonException

from airflow_provider_lance import exceptions
from airflow_provider_lance.exceptions import LanceStreamError, error_class

__all__ = ["named_by_worker"]

_RAISED = re.compile(rf"^{re.escape(exceptions.__name__)}\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a Python trace: where the class is, its name, what it says."""


def named_by_worker(error: PythonException) -> LanceStreamError | None:
    """Return the error of this package that a worker raised, ``None`` if it was any other."""
    raised = _RAISED.findall(str(error))
    if not raised:
        return None
    name, message = raised[-1]
    return error_class(name)(message)
