"""The options of file sources that are known here are those of the Spark that runs."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.spec.source_options import known_options

CLASSES = {
    "json": "catalyst.json.JSONOptions",
    "csv": "catalyst.csv.CSVOptions",
    "xml": "catalyst.xml.XmlOptions",
    "text": "execution.datasources.text.TextOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
    "orc": "execution.datasources.orc.OrcOptions",
}
WRITERS = {"codec"}
STREAM = "org/apache/spark/sql/execution/streaming/runtime/FileStreamOptions.class"


@pytest.mark.parametrize("source", CLASSES)
def test_every_option_of_sparks_reader_is_known(spark: SparkSession, source: str) -> None:
    java: Any = spark.sparkContext._jvm
    kind = java.java.lang.Class.forName(f"org.apache.spark.sql.{CLASSES[source]}$")
    names = kind.getField("MODULE$").get(None).getAllOptions().mkString("\n").splitlines()
    of_readers = {name for name in names if name not in WRITERS and "." not in name}
    assert len(of_readers) > 1
    assert of_readers <= set(known_options(source))


def test_every_option_of_sparks_file_stream_is_known() -> None:
    """That class has its options' names in its code only."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-sql_2.13-*.jar")
    with zipfile.ZipFile(jar) as classes:
        constants = text_constants(classes.read(STREAM))
    names = {text for text in constants if text.isalpha()}
    assert "maxFilesPerTrigger" in names
    assert names - {"Invalid"} <= set(known_options("json"))


def text_constants(compiled: bytes) -> set[str]:
    """Return the texts in the constant pool of a compiled class (JVM specification, 4.4)."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 15: 3, 16: 2, 19: 2, 20: 2}
    (count,) = struct.unpack_from(">H", compiled, 8)
    texts, indices, offset, index = {}, [], 10, 1
    while index < count:
        tag = compiled[offset]
        if tag == 1:
            (size,) = struct.unpack_from(">H", compiled, offset + 1)
            texts[index] = compiled[offset + 3 : offset + 3 + size].decode(errors="replace")
            offset += 3 + size
        else:
            if tag == 8:
                indices += struct.unpack_from(">H", compiled, offset + 1)
            offset += 1 + sizes.get(tag, 4)
        index += 2 if tag in (5, 6) else 1
    return {texts[each] for each in indices}
