"""A port for a process that is told by its environment where to meet others."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from autotune.model.distributed_launch import FREE_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT: Final = "MASTER_PORT"


def with_port(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with a port that is free on this machine now, where any free one is asked for."""
    if env.get(_PORT) != FREE_PORT:
        return dict(env)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind(("127.0.0.1", 0))
        return {**env, _PORT: str(found.getsockname()[1])}
