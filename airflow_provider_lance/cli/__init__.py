"""The command ``lance-stream``, also reachable as ``airflow lance``."""
