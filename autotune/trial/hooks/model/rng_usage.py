"""Use of random numbers per batch, in the model's call or in the loop itself.

Modules such as `nn.Dropout` can be queried. Calls of torch functions in `forward` cannot, nor can noise and
time steps drawn between the fetch of a batch and its backward pass. All of them change the state of a
generator. Generators created by the script are not examined.
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
"""State of the host's generators and of torch's."""


class RngUsage:
    """Random number use of one trained module.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Start without observations."""
        self._torch = torch
        self._left = _LOOKS
        self._before: Streams | None = None
        self._indices: list[int] = []
        self.seen = False
        """The module drew numbers in an examined call, or a call could not be examined."""

    def begins(self, module: Any) -> None:
        """Record the start of a training call.

        In evaluation mode dropout is off, so such calls do not count as examined. Lazy parameters are
        initialized from the same generators in the first call.
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
        """Record the end of the call."""
        before, self._before = self._before, None
        if before is not None:
            self.seen = not _same(self._torch, before, _streams(self._torch, self._indices))


class LoopDraws:
    """Random number use of the loop, between the fetch of a batch and its backward pass.

    The first pass is not examined, as it may initialize parameters.

    Args:
        torch: Imported.
    """

    def __init__(self, torch: Any) -> None:
        """Start without observations."""
        self._torch = torch
        self._left = _LOOP_LOOKS
        self._is_first = True
        self._before: Streams | None = None
        self._indices: list[int] = []
        self.where = ""
        """Generators that changed in a pass, `ON_HOST` or `ON_DEVICE`; the former if unreadable."""
        self.on_complete: Callable[[], None] | None = None
        """Called when detection is complete: fetches and passes need no further observation."""

    def fetched(self) -> None:
        """Record the delivery of a batch with gradients enabled; the last one before a pass counts."""
        if self.where == ON_HOST or self._is_first or self._left <= 0:
            return
        cuda = self._torch.cuda
        self._indices = [cuda.current_device()] if cuda.is_initialized() else []
        self._before = _streams(self._torch, self._indices)
        if self._before is None:
            self.where = ON_HOST

    def withdrawn(self) -> None:
        """Discard the last fetch, as an iteration over a loader starts, which draws numbers itself."""
        self._before = None

    def backward(self) -> None:
        """Record the start of a backward pass."""
        before, self._before = self._before, None
        self._is_first = False
        if before is None:
            if self.on_complete is not None and (self.where == ON_HOST or self._left <= 0):
                self.on_complete()
            return
        self._left -= 1
        after = _streams(self._torch, self._indices)
        if after is None or not _same(self._torch, _of_host(before), _of_host(after)):
            self.where = ON_HOST
        elif not _same(self._torch, before, after):
            self.where = ON_DEVICE


def _streams(torch: Any, indices: list[int]) -> Streams | None:
    """Return the state of the generators; None if unreadable, as during CUDA graph capture."""
    try:
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(n) for n in indices)]
        return host_streams(), states
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, AssertionError):
        return None


def _of_host(streams: Streams) -> Streams:
    """Return the streams without those of devices, which follow torch's host generator."""
    return streams[0], streams[1][:1]


def _same(torch: Any, one: Streams, other: Streams | None) -> bool:
    if other is None:
        return False
    pairs = zip(one[1], other[1], strict=True)
    return one[0] == other[0] and all(torch.equal(a, b) for a, b in pairs)
