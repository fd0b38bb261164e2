"""A Lance dataset in memory, for fast tests of code that uses the protocol."""
