"""Measurement or failure of a trial, from the reports of its process and the samples of its host."""
