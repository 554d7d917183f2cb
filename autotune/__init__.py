"""autotune: find the fastest configuration of a training script that does not harm its training.

Importing the package loads the standard library only; each name below is loaded on first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.driver.api import Tuned, load, resume, tune
    from autotune.errors import AutotuneError
    from autotune.model.measurement import Measurement
    from autotune.report.listener import Listener
    from autotune.sdk import step, value
    from autotune.service.client import Client

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "Client",
    "Listener",
    "Measurement",
    "Tuned",
    "__version__",
    "load",
    "resume",
    "step",
    "tune",
    "value",
]

_HOMES = {
    "AutotuneError": "autotune.errors",
    "Client": "autotune.service.client",
    "Listener": "autotune.report.listener",
    "Measurement": "autotune.model.measurement",
    "Tuned": "autotune.driver.api",
    "load": "autotune.driver.api",
    "resume": "autotune.driver.api",
    "step": "autotune.sdk",
    "tune": "autotune.driver.api",
    "value": "autotune.sdk",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        if name in ("load", "resume", "tune"):
            _refuse_elsewhere()
        return getattr(importlib.import_module(_HOMES[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def _refuse_elsewhere() -> None:
    """Check that a search can run on this system; a script may call `step` on any."""
    reason = importlib.import_module("autotune.model.supported").refusal(sys.platform, sys.version_info)
    if reason:
        raise importlib.import_module("autotune.errors").BackendError(reason)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
