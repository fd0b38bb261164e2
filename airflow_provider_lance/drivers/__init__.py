"""Start a driver on this host, find it again, and end it.

This package knows neither Airflow nor Spark: a driver is a command.
"""
