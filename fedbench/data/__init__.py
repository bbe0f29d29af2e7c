"""Data: files to arrays (datasets), labels and a seed to client indices (partitions), and their split."""
