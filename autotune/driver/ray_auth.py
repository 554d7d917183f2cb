"""How a Ray that we start or reach is authenticated; imported and called before ray itself.

Ray's core reads mode and token when it is first loaded and keeps them for the life of the process,
so the token is one per process, not one per search.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

_made: list[Path] = []


def prepare(address: str) -> None:
    """Set mode and token in this process's environment, explicitly in every case.

    A local Ray of ours gets a fresh token that nobody else can read. For an existing cluster the
    user's own setting stands; where there is none, a token in the environment means mode ``token``
    and its absence means ``disabled``. A token we were not given is never read.

    Args:
        address: Of an existing cluster; empty for a local Ray of our own.
    """
    if address:
        given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
        os.environ.setdefault("RAY_AUTH_MODE", "token" if given else "disabled")
        return
    if not _made:
        folder = Path(tempfile.mkdtemp(prefix="at-ray-"))
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        _made.append(token)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(_made[0])
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        os.environ.pop(name, None)
