"""The HTML report: one file with its style and charts.

Entry point: `html.page`.
"""
