"""Fuzzing of everything that reads what a user, another tool or another version wrote.

Each input is accepted with the right meaning, or refused by an error of the package's own tree.
`python -m tests.fuzz --inputs 100000 --seed 1` runs as many inputs as wanted; the suite runs some
seconds' worth.
"""
