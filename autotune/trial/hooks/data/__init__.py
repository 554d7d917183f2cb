"""Hooks on datasets and data loaders."""
