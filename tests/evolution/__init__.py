"""A laboratory: columns that are added while other writers, compaction and stale drivers work."""
