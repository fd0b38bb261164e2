"""Buttons beside a task: the driver's Spark UI, the dataset."""
