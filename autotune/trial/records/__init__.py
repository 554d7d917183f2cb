"""Descriptions of batches, samples and loaders; no state of the training process."""
