"""Runs scripts in real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trial_kit import Ran, runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Run a script under a plan: `run(text, changes=..., fidelity=...)`; ``bare=True`` without us."""
    return runner(tmp_path)
