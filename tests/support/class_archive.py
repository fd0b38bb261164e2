"""An archive of the classes that Spark's JVM loads: `python -m tests.support.class_archive FILE`.

A driver's JVM in the tests lives for seconds, and most of its processor time is the loading of
classes. With the archive, a start with one short stream takes 6.0 s of processor time in place of
9.5. A JVM that cannot use the archive runs as it would without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.processes import QUICK_JAVA, REPOSITORY

FILE = REPOSITORY / ".tools" / "spark-classes.jsa"
_SECONDS = 120.0


def use() -> None:
    """Let every spark-submit that this process or its children start use the archive, if any."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if FILE.exists() and str(FILE) not in given:
        options = f"-XX:SharedArchiveFile={FILE} -Xlog:cds=off -Xlog:cds+dynamic=off"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {options}".strip()


def make(file: Path) -> None:
    """Run one short stream in a JVM that leaves the archive when it exits."""
    from pyspark.sql import SparkSession

    from airflow_provider_lance.spark.sink import LanceSink

    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={file} -Xlog:cds=off"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="class-archive-") as folder:
        place = Path(folder)
        (place / "source").mkdir()
        (place / "source" / "1.json").write_text('{"id": 1}\n')
        sink = LanceSink(
            uri=str(place / "t.lance"),
            queryId="archive",
            checkpointLocation=str(place / "checkpoint"),
            createIfMissing=True,
        )
        rows = session.readStream.schema("id BIGINT").json(str(place / "source"))
        sink.start(rows, availableNow=True).awaitTermination()
        session.stop()
    jvm.stdin.close()  # its gateway exits
    jvm.wait(_SECONDS)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
