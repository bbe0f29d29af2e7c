"""The ground: trees of tensors, randomness, batches, files, errors. Imports nothing of the package."""
