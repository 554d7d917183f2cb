"""Selection of the next confirmation run: rounds of the baseline, the finalists and the challengers. Pure."""
