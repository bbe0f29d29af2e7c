"""Parts of several methods: collaboration graphs, coalitions, passes over a client's samples, the simplex."""
