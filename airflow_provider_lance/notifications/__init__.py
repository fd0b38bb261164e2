"""Notifiers for Airflow's callbacks and deadlines."""
