"""Read a dataset with Spark, through this package's streaming source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from tests.readers.read import checksum
from tests.support.lance_stream import Epochs
from tests.support.lance_stream import read as read_stream


def with_spark(session: SparkSession, uri: str, checkpoint: Path) -> dict[str, Any]:
    """Return what :mod:`tests.readers.read` prints, of a stream that reads all rows."""
    rows: pa.Table = Epochs(read_stream(session, uri), checkpoint).run()
    found = {name: checksum(rows, name) for name in rows.column_names}
    return {"version": pyspark.__version__, "columns": found}
