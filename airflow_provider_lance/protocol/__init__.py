"""Exactly-once commits: what is on disk, who owns a query, and how an epoch is committed.

Plain Python with pylance. The Spark job, the command line and Airflow import it. It imports none of
them, and of this package only ``exceptions``.
"""
