"""Compile time of a measured run: before its window, inside it, and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.trial.runtime.state import RuntimeState


class CompileTime:
    """Splits the compile time of the process by what the throughput includes.

    Args:
        state: Counts the compile time of the process so far.
    """

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._before_ns = 0
        self._until_ns = 0
        self._over_ns: int | None = None
        self._compiled: list[tuple[int, int]] = []
        """(end of a compiling step, compile time of the process up to it), in ns."""

    def compiled(self, end_ns: int) -> None:
        """Note the end of a step that compiled."""
        self._compiled.append((end_ns, self._state.compile_ns))

    def window_opens(self, before_ns: int | None = None) -> None:
        """Note the compile time before the window.

        Args:
            before_ns: That time, for a window formed of past steps; None: the time so far.
        """
        self._before_ns = self._state.compile_ns if before_ns is None else before_ns

    def window_ends(self) -> None:
        """Note the compile time up to the end of the window."""
        self._until_ns = self._state.compile_ns
        self._over_ns = None

    def run_ends(self) -> None:
        """Note the compile time as the run was long enough for its loss.

        Later recompilations are caused by a probe and are not the script's.
        """
        if self._over_ns is None:
            self._over_ns = self._state.compile_ns

    def apart_ns(self, begin_ns: int, *, counts: bool) -> int:
        """Return the compile time outside of the throughput: before the window, and in steps set aside.

        Args:
            begin_ns: Start of the steady part of the window.
            counts: The steady part includes its compiling steps.
        """
        if not counts:
            return self._until_ns
        before = [ns for end_ns, ns in self._compiled if end_ns <= begin_ns]
        return max([self._before_ns, *before[-1:]])

    def late_ns(self, *, counts: bool) -> int:
        """Return the compile time after the window; 0 if its steps include and report their own."""
        if counts:
            return 0
        over_ns = self._state.compile_ns if self._over_ns is None else self._over_ns
        return over_ns - self._until_ns
