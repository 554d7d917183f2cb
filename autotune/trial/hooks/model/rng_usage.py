"""Whether random numbers are drawn for a batch: by the model when it is called, or by the loop itself.

Modules such as `nn.Dropout` can be asked; a function of torch's that is called in `forward` cannot, and no
more can the noise and the time steps that a loop draws between the fetch of a batch and its backward pass.
What all of them leave behind is a generator that has moved. One that the script made itself is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.trial.hooks.model.repeated_blocks import host_streams

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOKS = 2
_LOOP_LOOKS = 4

ON_HOST: Final = "host"
ON_DEVICE: Final = "device"

Streams = tuple[Any, list[Any]]
"""Where the generators of the host stand, and those of torch."""


class RngUsage:
    """Of one trained module.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Nothing was seen yet."""
        self._torch = torch
        self._left = _LOOKS
        self._before: Streams | None = None
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
        self._before = _streams(self._torch, self._indices)
        self.seen = self._before is None

    def ended(self) -> None:
        """The call is over."""
        before, self._before = self._before, None
        if before is not None:
            self.seen = not _same(self._torch, before, _streams(self._torch, self._indices))


class LoopDraws:
    """Of the loop that trains, between the fetch of a batch and the backward pass over it.

    The first pass is not looked at: it may be what makes parameters.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Nothing was seen yet."""
        self._torch = torch
        self._left = _LOOP_LOOKS
        self._is_first = True
        self._before: Streams | None = None
        self._indices: list[int] = []
        self.where = ""
        """Whose generators moved in a pass, `ON_HOST` or `ON_DEVICE`; the first where they do not tell."""
        self.on_told: Callable[[], None] | None = None
        """Called once nothing more is to be found out: neither fetches nor passes need to be told of."""

    def fetched(self) -> None:
        """A batch was handed over while gradients were on; the last one before a pass is what counts."""
        if self.where == ON_HOST or self._is_first or self._left <= 0:
            return
        cuda = self._torch.cuda
        self._indices = [cuda.current_device()] if cuda.is_initialized() else []
        self._before = _streams(self._torch, self._indices)
        if self._before is None:
            self.where = ON_HOST

    def withdrawn(self) -> None:
        """A pass over a loader begins, which draws for itself: nothing is judged before the next fetch."""
        self._before = None

    def backward(self) -> None:
        """A backward pass begins."""
        before, self._before = self._before, None
        self._is_first = False
        if before is None:
            if self.on_told is not None and (self.where == ON_HOST or self._left <= 0):
                self.on_told()
            return
        self._left -= 1
        after = _streams(self._torch, self._indices)
        if after is None or not _same(self._torch, _of_host(before), _of_host(after)):
            self.where = ON_HOST
        elif not _same(self._torch, before, after):
            self.where = ON_DEVICE


def _streams(torch: Any, indices: list[int]) -> Streams | None:
    """Where the generators stand; None where they do not tell, as while CUDA records a graph."""
    try:
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(n) for n in indices)]
        return host_streams(), states
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError):
        return None


def _of_host(streams: Streams) -> Streams:
    """Without those of devices, which come after torch's own of the host."""
    return streams[0], streams[1][:1]


def _same(torch: Any, one: Streams, other: Streams | None) -> bool:
    if other is None:
        return False
    pairs = zip(one[1], other[1], strict=True)
    return one[0] == other[0] and all(torch.equal(a, b) for a, b in pairs)
