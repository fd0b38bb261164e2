"""Start a driver on this host, find it again, and end it.

It knows neither Airflow nor Spark: a driver is a command.
"""
