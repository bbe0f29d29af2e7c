"""The engine: trees of tensors, keyed randomness, local training, and the one loop over rounds."""
