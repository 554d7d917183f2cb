"""Loops around the Session, and the wiring of everything."""
