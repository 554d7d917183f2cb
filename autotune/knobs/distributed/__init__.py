"""Knobs of trainings that several processes share."""
