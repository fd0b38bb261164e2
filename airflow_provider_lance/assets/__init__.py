"""Lance datasets as Airflow assets."""
