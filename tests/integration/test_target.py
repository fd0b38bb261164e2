"""Making the dataset on a store that fails in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.target import open_target
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.support.proxy import Fault, Kind, Proxy, no_fault, once
from tests.support.s3 import IMPATIENT, S3Server, s3_server
from tests.support.sparkstream import ORDERS, orders


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.ERROR_500_AFTER])
def test_a_dataset_is_made_or_a_retry_makes_it(
    spark: SparkSession, server: S3Server, fault: Fault
) -> None:
    df, uri = spark.createDataFrame(orders(0, 1)), server.uri(fault.value)
    with Proxy(server.endpoint, once(fault, Kind.PUT_MANIFEST)) as proxy:
        options = SinkOptions.parse(
            {
                "uri": uri,
                "queryId": "q",
                "checkpointLocation": "/checkpoint",
                "createIfMissing": True,
                "storageOptions": server.options(proxy.endpoint, **IMPATIENT),
            }
        )
        if fault is Fault.RESET_BEFORE:
            with pytest.raises(StorageUnavailableError, match=f"cannot create {uri}: "):
                open_target(df, options)
        else:
            assert open_target(df, options).version == 1
        proxy.plan = no_fault
        assert open_target(df, options).version == 1
    assert open_dataset(uri, server.options()).dataset.schema.names == ORDERS.names
