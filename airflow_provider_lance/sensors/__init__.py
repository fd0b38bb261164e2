"""Tasks that wait for a stream's epochs."""
