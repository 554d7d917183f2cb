"""The result as a file."""
