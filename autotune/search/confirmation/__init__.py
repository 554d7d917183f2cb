"""Which run a confirmation needs next: rounds of the baseline, the finalists and the challengers. Pure."""
