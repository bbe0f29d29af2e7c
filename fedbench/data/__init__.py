"""Files to arrays (`datasets/`), labels to clients (`partitions/`), and both on the device (`federation.py`)."""
