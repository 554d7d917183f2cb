"""The measured window: warm-up, optimizer steps, and the end of the run."""
