"""Buttons beside a task: the stream's page, the driver's Spark UI, the dataset."""
