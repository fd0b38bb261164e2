"""The wheel's package ``pyspark_lance_stream``: Spark finds ``format("lance")`` in it by itself.

Spark imports each package named ``pyspark_…`` and registers its ``DefaultSource``
(https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html). So a
declarative pipeline, or a session in which the source is not registered, reads a Lance dataset as a
stream. Storage options come from the environment there; :func:`~.source.register_source` takes
others.
"""

from airflow_provider_lance.spark.source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
