"""Output while a search runs: the live view, the event stream, and writes that never block the search."""
