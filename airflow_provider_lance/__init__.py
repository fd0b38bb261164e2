"""Stream into Lance datasets exactly once with Spark, run and supervised from Airflow.

This module is imported on Spark executors too: it holds only the version.
"""

__version__ = "0.1.0"
