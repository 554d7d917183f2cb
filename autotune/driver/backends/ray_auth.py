"""How a Ray that we start or reach is authenticated; imported and called before ray itself.

Ray's core reads mode and token when it is first loaded and keeps them for the life of the process,
so the token is one per process, not one per search. It is kept in the environment alone: a file would
outlive a driver that is killed.
"""

from __future__ import annotations

import functools
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def prepare(address: str) -> None:
    """Set mode and token in this process's environment, explicitly in every case.

    A local Ray of ours gets a fresh token. For an existing cluster the user's own setting stands; where
    there is none, a token in the environment means mode ``token`` and its absence means ``disabled``. A
    token we were not given is never read.

    Args:
        address: Of an existing cluster; empty for a local Ray of our own.
    """
    if address:
        given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
        os.environ.setdefault("RAY_AUTH_MODE", "token" if given else "disabled")
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = _token()
    for name in ("RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        os.environ.pop(name, None)


def without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what `prepare` has set in it for a Ray of ours: no trial needs that."""
    is_ours = environ.get("RAY_AUTH_TOKEN") == _token()
    return {n: v for n, v in environ.items() if not (is_ours and n in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))}


@functools.cache
def _token() -> str:
    return secrets.token_hex(32)
