"""Autotuning service: a queue of searches that a team shares.

One process: a FastAPI application (`app`), a reconciler thread (`reconcile`), and a database (`store`). It
runs no user code: a search is the command ``autotune search`` in a separate job (`jobs`), whose journal is
the source of truth for its trials. Entry points: `serve` for the command line, `client.Client` for programs.

May import `autotune.driver` and below; needs the extra ``service``.
"""
