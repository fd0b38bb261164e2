"""Datasets that the sink has written, read by other tools and compared."""
