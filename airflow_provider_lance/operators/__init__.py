"""Tasks that run streams."""
