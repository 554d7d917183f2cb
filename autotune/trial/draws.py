"""Whether a model draws random numbers when it is called.

Modules such as `nn.Dropout` can be asked; a function of torch's that is called in `forward` cannot. What all
of them leave behind is a generator that has moved.
"""

from __future__ import annotations

from typing import Any

from autotune.trial.blocks import host_streams

_LOOKS = 2


class Draws:
    """Of one trained module.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Nothing was seen yet."""
        self._torch = torch
        self._left = _LOOKS
        self._before: tuple[Any, list[Any]] | None = None
        self._indices: list[int] = []
        self.seen = False
        """It drew in a call that was looked at, or that could not be looked at."""

    def begins(self, module: Any) -> None:
        """The module is about to be called to be trained.

        In evaluation mode dropout is off, so such calls do not use up the looks. Parameters that get their
        size in the first call are filled from the same generators.
        """
        self._before = None
        if self.seen or self._left <= 0 or module is None:
            return
        parameters = list(module.parameters())
        if any(map(self._torch.nn.parameter.is_lazy, parameters)):
            return
        self._left -= bool(module.training)
        self._indices = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
        self._before = self._streams()
        self.seen = self._before is None

    def ended(self) -> None:
        """The call is over."""
        before, self._before = self._before, None
        if before is None:
            return
        after = self._streams()
        self.seen = after is None or not self._same(before, after)

    def _streams(self) -> tuple[Any, list[Any]] | None:
        """Where the generators stand; None where they do not tell, as while CUDA records a graph."""
        torch = self._torch
        try:
            states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(n) for n in self._indices)]
            return host_streams(), states
        except (RuntimeError, ValueError, TypeError, AttributeError):
            return None

    def _same(self, one: tuple[Any, list[Any]], other: tuple[Any, list[Any]]) -> bool:
        pairs = zip(one[1], other[1], strict=True)
        return one[0] == other[0] and all(self._torch.equal(a, b) for a, b in pairs)
