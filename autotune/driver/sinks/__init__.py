"""Sinks of a study: MLflow, the service and report.html.

Entry point: `sync.Syncer`, which sends what the journal holds. No decision of a search depends on a sink.
"""
