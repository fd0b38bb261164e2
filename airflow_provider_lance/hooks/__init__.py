"""Connections to the stores that hold Lance datasets."""
