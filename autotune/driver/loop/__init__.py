"""One search, trial by trial: what runs next, what is run again, and when it ends.

Entry point: `session.Session`, around which every driver is a loop. It imports the search, the launcher's
records and the store; no backend and no sink.
"""
