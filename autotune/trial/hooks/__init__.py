"""Hooks in PyTorch and in libraries, which measure and change a training."""
