"""Parts that several methods share: collaboration graphs, coalitions, passes over a client's samples, the simplex."""
