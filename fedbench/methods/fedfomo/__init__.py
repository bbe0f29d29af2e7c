"""FedFomo: candidates among peers and their weights."""
