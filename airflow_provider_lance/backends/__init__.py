"""Where drivers run: submit a driver to its backend, poll it, find it again, stop it, read its log.

A driver runs as a process of this host, or in a cluster whose own API is asked about it. A further
cluster manager is one file here and its line in :mod:`.cluster`.
"""
