"""Workspace of one trial: folder, environment, isolated writes, compile caches and output."""
