"""The ground: trees of tensors, randomness, batches, files, signals, errors. It imports nothing of the package."""
