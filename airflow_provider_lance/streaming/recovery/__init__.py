"""Recovery checks: dataset, checkpoint and driver compared; what is wrong, and what to type."""
