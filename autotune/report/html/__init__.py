"""The HTML report: one file with its style and charts, for reading, printing and sending.

Entry point: `html.page`.
"""
