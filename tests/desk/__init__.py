"""The table of trouble: each kind is built for real, and ended with what the check prints."""
