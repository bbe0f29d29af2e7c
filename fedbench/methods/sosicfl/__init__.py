"""SosicFL: clusters of clients as regions of a simplex of classifiers."""
