"""Reading a Lance dataset as a stream: what each version changed, and how much an epoch reads.

It knows no Spark; :mod:`airflow_provider_lance.spark.source` makes it a data source.
"""
