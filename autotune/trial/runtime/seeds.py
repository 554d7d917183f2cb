"""Seeds: the same trial seed gives the same samples and weights in every configuration.

All generators are seeded with the offset before the script runs; a seed set by the script is shifted by it.
With offset 0 the script's own seeds are unchanged.
"""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.runtime.imports import AfterImport
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_NUMPY, _TORCH, _TENSORFLOW = (0, 2**32), (-(2**63), 2**64), (-(2**63), 2**63)
"""Ranges of valid seeds: (first, end), end excluded."""


class Seeds:
    """Seeds and shifts seeds."""

    def __init__(self, offset: int, state: RuntimeState, undo: Undo) -> None:
        self._offset = offset
        self._state = state
        self._undo = undo
        self._inside = False

    def begin(self, hooks: AfterImport) -> None:
        """Seed `random` now, and the other generators when the script imports them."""
        random.seed(self._offset)
        self._shift(random, "seed", None)
        hooks.on("numpy.random", self._numpy)
        hooks.on("tensorflow", self._tensorflow)

    def _numpy(self, module: Any) -> None:
        try:
            module.seed(self._offset % 2**32)
            self._shift(module, "seed", _NUMPY)
        except Exception as error:
            self._state.faults.note("seeds", error)

    def _tensorflow(self, module: Any) -> None:
        try:
            module.random.set_seed(self._offset)
            self._shift(module.random, "set_seed", _TENSORFLOW)
        except Exception as error:
            self._state.faults.note("seeds", error)

    def torch(self, torch: Any) -> None:
        """Seed torch after its import."""
        torch.manual_seed(self._offset)
        self._shift(torch, "manual_seed", _TORCH)
        if getattr(torch, "random", None) is not None and hasattr(torch.random, "manual_seed"):
            self._undo.assign(torch.random, "manual_seed", torch.manual_seed)
        for name in ("manual_seed", "manual_seed_all"):
            self._shift(torch.cuda, name, _TORCH)

    def _shift(self, owner: Any, name: str, seeds: tuple[int, int] | None) -> None:
        """Shift the seed passed to this function, within the range of valid seeds; None for any number."""
        original: Callable[..., Any] = getattr(owner, name)
        state, offset = self._state, self._offset

        def shifted(given: int) -> int:
            """Return the shifted seed, wrapped around at the end of the range; other values are unchanged."""
            if seeds is None:
                return given + offset
            least, end = seeds
            return least + (given + offset - least) % (end - least) if least <= given < end else given

        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            if not offset or self._inside or not state.active:
                return original(*args, **kwargs)
            if args and type(args[0]) is int:
                args = (shifted(args[0]), *args[1:])
            elif type(kwargs.get("seed")) is int:
                kwargs["seed"] = shifted(kwargs["seed"])
            elif type(kwargs.get("a")) is int:
                kwargs["a"] = shifted(kwargs["a"])
            self._inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False

        self._undo.assign(owner, name, seed)
