"""What clients keep between rounds, and where."""
