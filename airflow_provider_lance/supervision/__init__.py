"""Is the driver running, and what follows: heartbeats, health and the restart policy."""
