"""Where Spark keeps the checkpoint, through Hadoop's own filesystems."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import AccessDeniedError, SpecError, StorageUnavailableError
from airflow_provider_lance.spark.files import HadoopFiles


@pytest.mark.parametrize("location", ["s3a://bucket/checkpoint", "nonsense://host/checkpoint"])
def test_a_missing_file_system_is_not_worth_a_retry(spark: SparkSession, location: str) -> None:
    with pytest.raises(SpecError, match=rf"{location}: .*spark\.jars\.packages"):
        HadoopFiles(spark, location)


def test_a_place_that_can_never_be_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AccessDeniedError, match=r"cannot reach .*/file/below"):
        HadoopFiles(spark, str(tmp_path)).write("file/below", b"")


def test_unreachable_file_is_a_transient_error(spark: SparkSession) -> None:
    with pytest.raises(StorageUnavailableError, match=r"cannot reach hdfs://nowhere.invalid"):
        HadoopFiles(spark, "hdfs://nowhere.invalid:9000/folder").read("file")
