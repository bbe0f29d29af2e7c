"""Experiment trackers that a run may report to: each an extra, off by default, and never the reason a run fails."""
