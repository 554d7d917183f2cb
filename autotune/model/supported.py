"""Supported systems, and the message for all others.

Loaded before any module that another system or Python version may be unable to parse. It imports next to
nothing, and its syntax is valid in much older versions.
"""

from __future__ import annotations

import re
from typing import Any

OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 13)
"""Newest version that the tests ran under; from 3.14 on Python starts loader workers differently."""

OLDEST_TORCH = (2, 6)
"""The first whose `torch.compile` works under every Python above (release notes of PyTorch 2.6)."""

UNSUPPORTED = "autotune.model.supported"
"""In place of an exception's class, where a trial was ended because of what it runs under."""

_SYSTEMS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows"}


def refusal(platform: str, version: tuple[Any, ...]) -> str:
    """Return why autotune does not run here, as a sentence; empty if it does.

    Args:
        platform: As `sys.platform`.
        version: As `sys.version_info`.
    """
    if platform != "linux":
        name = _SYSTEMS.get(platform, platform)
        return f"autotune runs on Linux only, and this is {name}"
    reason = python_refusal(version)
    return f"autotune {reason}" if reason else ""


def python_refusal(version: tuple[Any, ...]) -> str:
    """Return why this Python version is not supported, as the end of a sentence; empty if it is."""
    if OLDEST_PYTHON <= tuple(version[:2]) <= NEWEST_PYTHON:
        return ""
    return f"needs Python {_text(OLDEST_PYTHON)} to {_text(NEWEST_PYTHON)}, and this is {_text(version[:3])}"


def torch_refusal(version: str) -> str:
    """Return why no trial runs with this PyTorch, as the end of a sentence; empty if it may.

    Args:
        version: From `torch.__version__`; an unparsable one is accepted.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST_TORCH:
        return ""
    return f"needs PyTorch {_text(OLDEST_TORCH)} or newer, and this is {version}"


def _text(version: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in version)
