"""Authentication of a Ray cluster or a local Ray, set up before ray is imported.

Ray's core reads mode and token when it is first loaded and keeps them for the life of the process, so there
is one token per process, not per search. It is stored in the environment only: a file would outlive a killed
driver.
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

    A local Ray gets a new token. For an existing cluster the user's setting applies. Without one, a token in
    the environment means mode ``token`` and its absence ``disabled``. Other token sources are not read.

    Args:
        address: Address of an existing cluster; empty for a local Ray.
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
    """Return the environment without the variables set by `prepare` for a local Ray."""
    is_ours = environ.get("RAY_AUTH_TOKEN") == _token()
    return {n: v for n, v in environ.items() if not (is_ours and n in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))}


@functools.cache
def _token() -> str:
    return secrets.token_hex(32)
