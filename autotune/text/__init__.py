"""Texts that leave the process: secrets removed, control characters escaped, encodable as UTF-8.

Entry point: `text.redact`. Imports the standard library only; every other package may import this one.
"""
