"""Loops that run the trials of a session, in child processes or as a Ray Tune experiment."""
