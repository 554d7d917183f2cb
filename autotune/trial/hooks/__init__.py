"""Hooks in PyTorch and in libraries through which a training is measured and changed."""
