"""Values that describe batches, samples and loaders; no state of the training process."""
