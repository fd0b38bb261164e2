"""One epoch, exactly once: what is on disk, who owns a query, and how an epoch is committed.

Plain Python with pylance. A Spark job, the command line and Airflow import it; it imports none of
them, and of the package only ``exceptions``.
"""
