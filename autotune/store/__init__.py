"""Journal of a study, and the data derived from it."""
