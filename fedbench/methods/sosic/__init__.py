"""SosicFL's preparation: where in the solution simplex each client trains."""
