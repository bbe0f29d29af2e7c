"""One run from its config to its folder: execution, key, progress, trackers, and reading it again."""
