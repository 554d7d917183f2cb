"""Faults of autotune itself: logged in a file, with the hook switched off and the script unharmed.

A hook that is off no longer confirms its knobs, so a trial that requested them is not ranked.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Faults:
    """Collects faults of one process; at most one note per hook."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.off: set[str] = set()
        self.on_fault: Callable[[str], None] | None = None
        """Called once per hook that was switched off, after the log entry."""

    def note(self, hook: str, error: BaseException) -> None:
        """Switch the hook off and log the reason; never raises."""
        if hook in self.off:
            return
        self.off.add(hook)
        self._write(hook, error)
        if self.on_fault is not None:
            with contextlib.suppress(Exception):
                self.on_fault(hook)

    def _write(self, hook: str, error: BaseException) -> None:
        if self._path is None:
            return
        try:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.perf_counter():.3f} {hook}\n{text}\n")
        except OSError:
            return
