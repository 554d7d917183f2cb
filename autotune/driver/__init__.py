"""Drivers: loops around the session, and the construction of all its parts."""
