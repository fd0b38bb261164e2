"""Compaction, indices and cleanup: measure a dataset, do what is worth it, measure again."""
