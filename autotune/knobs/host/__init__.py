"""Knobs of the training process on the CPU: threads, allocator, garbage collection."""
