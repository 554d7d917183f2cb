"""Starts of a training process: installation of the hooks, ranks, the fork server, the file redirect."""
