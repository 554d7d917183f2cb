"""Hooks on training frameworks."""
