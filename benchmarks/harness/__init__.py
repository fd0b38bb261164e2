"""What all experiments share: scale, turns, timing, sheets of figures, plots and Spark."""
