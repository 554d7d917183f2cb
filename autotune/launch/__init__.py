"""One trial process, seen from outside."""
