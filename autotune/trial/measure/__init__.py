"""Measurement inside the process: warm-up, the window of optimizer steps, and the end of the run."""
