"""Drivers on this host: started detached, found again, their output kept, ended in order.

A launch is one driver process in one folder. A small process of its own, the keeper, starts the
driver, so that both outlive whoever asked for them. Nothing here knows of Airflow or Spark.
"""
