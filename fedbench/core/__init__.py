"""Trees of tensors, random keys, batches, files and locks, the cache, signals, errors, hashes of code."""
