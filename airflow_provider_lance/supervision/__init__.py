"""Whether a driver runs, and what to do about it: heartbeats, health and the restart policy."""
