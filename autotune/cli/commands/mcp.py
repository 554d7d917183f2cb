"""`autotune mcp`."""

from __future__ import annotations

import sys

from autotune.cli.commands.submit import Server


def mcp(*, server: Server = "") -> int:
    """Serve the Model Context Protocol on standard input and output, for coding agents.

    Its tools submit, read, verify and cancel searches with the scopes of AUTOTUNE_TOKEN.
    """
    from autotune.cli.mcp import serve
    from autotune.cli.remote import client

    serve(client(server), sys.stdin, sys.stdout)
    return 0
