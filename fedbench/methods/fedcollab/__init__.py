"""FedCollab: discriminators between clients, and the solver of its coalitions."""
