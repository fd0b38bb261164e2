"""The epoch protocol: how a micro-batch becomes visible in a Lance dataset exactly once.

Runs in Spark drivers and executors and in Airflow processes alike; it needs pylance and pyarrow,
imports both inside functions only, and never imports Airflow or Spark.
"""
