"""One study, trial by trial: what runs next, what is run again, and when it ends.

Entry point: `session.Session`, around which every driver is a loop. Imports everything below `driver`; no
backend and no sink.
"""
