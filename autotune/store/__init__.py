"""The journal of a study, and what is derived from it."""
