"""What runs in the Spark job: shipped as a zip; nothing else in the package imports it.

Needs pyspark (classic, not Connect), pylance and pyarrow; never imports Airflow.
"""
