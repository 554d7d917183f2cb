"""Knobs that choose kernels and memory layouts."""
