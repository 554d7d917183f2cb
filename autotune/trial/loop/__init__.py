"""Source analysis of the training loop: assignments, iterations, and values derived from constants."""
