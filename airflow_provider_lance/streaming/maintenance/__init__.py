"""Keep a dataset healthy beside live streams: compaction, indices, cleanup. Runs anywhere."""
