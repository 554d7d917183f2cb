"""The answer of a study: outcome, picks, evidence and bottleneck.

Entry point: `answer.pick`. All functions are pure functions of a study. May import `compare` and below.
"""
