"""Knobs of the batch and of gradient accumulation."""
