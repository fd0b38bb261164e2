"""What runs in the Spark job: shipped as a zip, imported by nothing else in the package.

Needs pyspark (classic, not Connect), pylance and pyarrow; never imports Airflow.
"""
