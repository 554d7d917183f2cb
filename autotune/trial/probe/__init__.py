"""Measurements beside the timed window: cached batches, phases of a step, operation counts, profiles."""
