"""Knobs of `torch.compile`."""
