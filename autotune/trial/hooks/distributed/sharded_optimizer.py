"""An optimizer step sharded across processes: each updates a part of the parameters (ZeRO stage 1).

Under `DistributedDataParallel` all processes have the same gradients. Each of them hides the gradients of the
others' parameters from its optimizer, which therefore keeps no state for them, and receives those parameters
after the step. The optimizer stays the object that the script has built.
"""

# Optimizers and tensors are of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.trial.hooks.distributed.data_parallel import DataParallel
    from autotune.trial.runtime.undo import Undo

SHARD_OPTIMIZER: Final = "ddp_shard_optimizer"
_MESSAGE_BYTES: Final = 250 * 2**20
"""Parameters are sent in messages of about this size; DDP's own size for its first broadcast."""


class ShardedOptimizer:
    """Sharding of optimizer steps across the processes of one wrapper.

    Args:
        undo: Restores the class of optimizers.
        parallel: The wrappers.
    """

    def __init__(self, undo: Undo, parallel: DataParallel) -> None:
        self._undo = undo
        self._parallel = parallel
        self._torch: Any = None
        self.is_wanted = False
        self._is_installed = False
        self._shares: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()
        """Optimizer -> the parameters that each process updates."""
        self._hidden: list[tuple[Any, Any]] = []

    def install(self, torch: Any) -> None:
        """Shard steps once there is a wrapper; install after hooks that complete gradients before a step."""
        self._torch = torch
        self._parallel.on_constructed.append(self._begin)

    def observed(self) -> bool | None:
        """Return whether optimizers keep state for their own share only, or None before a step."""
        if not self.is_wanted:
            return False if self._parallel.wrappers() else None
        rank = self._rank()
        if not self._shares or rank is None:
            return None
        kept = [(optimizer.state, shares[rank]) for optimizer, shares in self._shares.items()]
        return all({id(p) for p in state} <= {id(p) for p in share} for state, share in kept)

    def _begin(self, _wrapper: Any) -> None:
        if not self.is_wanted or self._is_installed:
            return
        self._is_installed = True
        optimizer = importlib.import_module("torch.optim.optimizer")
        for handle in (
            optimizer.register_optimizer_step_pre_hook(self._before_step),
            optimizer.register_optimizer_step_post_hook(self._after_step),
        ):
            self._undo.then(handle.remove)
        for name in ("state_dict", "__getstate__"):
            original = getattr(optimizer.Optimizer, name)
            self._undo.assign(optimizer.Optimizer, name, self._refusing(original))

    def _rank(self) -> int | None:
        wrapper = next(iter(self._parallel.wrappers()), None)
        return None if wrapper is None else int(wrapper.process_group.rank())

    def _share_out(self, optimizer: Any) -> list[list[Any]]:
        """Return the parameters of each process: those of the wrapper, in shares of about equal size."""
        (wrapper,) = self._parallel.wrappers()
        exchanged = {id(p) for p in wrapper.parameters() if p.requires_grad}
        found = [p for g in optimizer.param_groups for p in g["params"] if id(p) in exchanged]
        known = self._shares.get(optimizer)
        if known is None or sum(map(len, known)) != len(found):
            known = shares(found, [p.numel() for p in found], int(wrapper.process_group.size()))
            self._shares[optimizer] = known
        return known

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._reveal()  # of a step that has raised
        if len(self._parallel.wrappers()) != 1:
            return
        rank = self._rank()
        for at, share in enumerate(self._share_out(optimizer)):
            if at == rank:
                continue
            for parameter in share:
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None
                optimizer.state.pop(parameter, None)  # of a checkpoint, which holds all of it

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._reveal()
        if optimizer not in self._shares or len(self._parallel.wrappers()) != 1:
            return
        (wrapper,) = self._parallel.wrappers()
        distributed = importlib.import_module("torch.distributed")
        with self._torch.no_grad():
            for rank, share in enumerate(self._shares[optimizer]):
                if sent := [p.detach() for p in share]:
                    distributed._broadcast_coalesced(wrapper.process_group, sent, _MESSAGE_BYTES, rank)

    def _reveal(self) -> None:
        while self._hidden:
            parameter, gradient = self._hidden.pop()
            if parameter.grad is None:
                parameter.grad = gradient

    def _refusing(self, original: Any) -> Any:
        """Return a method that ends the training where it would save a share as if it were the whole."""

        @functools.wraps(original)
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this in self._shares:
                message = (
                    f"{SHARD_OPTIMIZER} is in use, so this process has a part of the optimizer's state. "
                    f"Run without {SHARD_OPTIMIZER} to save it."
                )
                raise RuntimeError(message)
            return original(this, *args, **kwargs)

        return call


def shares(items: Sequence[Any], sizes: Sequence[int], count: int) -> list[list[Any]]:
    """Divide items into lists of about equal size, the largest first, each into the smallest list so far."""
    found: list[list[Any]] = [[] for _ in range(count)]
    filled = [0] * count
    for at in sorted(range(len(items)), key=lambda at: -sizes[at]):
        least = filled.index(min(filled))
        found[least].append(items[at])
        filled[least] += sizes[at]
    return found
