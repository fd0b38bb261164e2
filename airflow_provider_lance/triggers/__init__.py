"""Waits that run in the triggerer and hold no worker slot."""
