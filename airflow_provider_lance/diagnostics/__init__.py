"""Collect evidence about a stream, and derive findings and a status from it; reads only."""
