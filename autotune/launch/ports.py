"""Ports for processes that read their rendezvous address from the environment."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from autotune.model.distributed_launch import FREE_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT: Final = "MASTER_PORT"


def with_port(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a port that is free now, if it requests any free port."""
    if env.get(_PORT) != FREE_PORT:
        return dict(env)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind(("127.0.0.1", 0))
        return {**env, _PORT: str(found.getsockname()[1])}
