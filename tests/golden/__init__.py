"""What protocol 1 writes, kept as files: every reader of a later package must understand them.

The files in `protocol-1/` were written by this package's own writers. They are never edited to
make a test pass: a file that changes is a change of what is on disk. `python -m tests.golden`
writes them again, and prints what has changed; a new key is such a change, and needs nothing else.
"""
