"""FedCollab's two stages before training: pairwise distances (discriminators) and coalitions (solver)."""
