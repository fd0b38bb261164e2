"""The creation of a dataset, where Lance fails."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.spark import target
from airflow_provider_lance.spec.sink_options import SinkOptions

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.mark.parametrize("error", [OSError, RuntimeError, ValueError])
def test_a_failed_creation_is_transient_whatever_lance_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*given: object, **options: object) -> None:
        raise error("the store is away")

    uri = str(tmp_path / "t.lance")
    options = SinkOptions(uri=uri, query_id="q", checkpoint_location=str(tmp_path / "checkpoint"))
    monkeypatch.setattr(lance, "write_dataset", fail)
    with pytest.raises(StorageUnavailableError, match=f"{uri}: the store is away"):
        target._create(SCHEMA, options)
