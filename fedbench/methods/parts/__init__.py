"""What several methods share: mixing, coalitions, class means, projections."""
