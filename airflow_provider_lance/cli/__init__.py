"""The command ``lance-stream``, also available as ``airflow lance``."""
