"""Sinks of a search: MLflow, the service and report.html, kept in step with the journal.

Entry point: `sync.Syncer`. Sinks read the journal and write elsewhere; a search does not wait for them.
"""
