"""Knobs of the data loader and of copies to the device."""
