"""The source of the training loop: what its statements assign, iterate over and compute from constants."""
