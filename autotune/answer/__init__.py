"""The answer of a study: its outcome, the picks, their evidence, and what holds the script back.

Entry point: `answer.pick`. Everything here is a pure function of a study. Imports `compare` and below.
"""
