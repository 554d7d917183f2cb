"""Hooks on an optimizer step: backward passes, losses, gradients and the optimizer itself."""
