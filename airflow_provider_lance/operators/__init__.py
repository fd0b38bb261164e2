"""Operators that run, stop, maintain and check streams."""
