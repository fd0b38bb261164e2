"""Stream into Lance datasets exactly once with Spark, run and watched from Airflow.

This module is imported on Spark executors too: it holds the version and nothing else.
"""

__version__ = "0.1.0"
