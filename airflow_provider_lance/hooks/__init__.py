"""Connections to where Lance datasets lie."""
