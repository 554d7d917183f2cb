"""Readers of a study: terminal text and MLflow."""
