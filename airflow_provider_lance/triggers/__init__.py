"""Waits that hold no worker: they run in the triggerer."""
