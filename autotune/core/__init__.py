"""Nouns of the system: frozen, standard library only, no input or output."""
