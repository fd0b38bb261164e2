"""Compaction, indices and cleanup: measure a dataset, do what pays off, measure again."""
