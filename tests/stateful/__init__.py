"""Stateful queries in front of the sink, killed and compared with a batch query."""
