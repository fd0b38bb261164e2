"""Where drivers run: submit, poll, find, stop and kill a driver, and read its log.

A driver runs as a process of this host, or in a cluster that is polled through its own API. A
further cluster manager is one file here and its entry in :mod:`.cluster_managers`.
"""
