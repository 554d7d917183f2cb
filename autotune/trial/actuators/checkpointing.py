"""Repeated blocks with activation checkpointing: activations are recomputed in the backward pass.

A block gets a subclass of its class whose `forward` uses `torch.utils.checkpoint`, as
`torch.distributed.fsdp.fully_shard` does. So dynamo can trace it, names in `state_dict` and hooks do not
change, and pickles and copies have the script's own class.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.hooks.model.repeated_blocks import PLAIN, plain_class

if TYPE_CHECKING:
    from autotune.trial.hooks.model.dynamo_graphs import Graphs
    from autotune.trial.hooks.model.repeated_blocks import RepeatedBlocks
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_made_anew: Final = vars(copyreg)["_reconstructor"]
_NODE: Final = "tag_activation_checkpoint"
_BODY: Final = "_autotune_body"
_KNOB: Final = "activation_checkpointing"


class Checkpointing:
    """Implements `CheckpointingHook`; a part of the root (`RootPart`)."""

    def __init__(
        self, state: RuntimeState, undo: Undo, root: TrainedModules, blocks: RepeatedBlocks, graphs: Graphs
    ) -> None:
        self._state = state
        self._undo = undo
        self._root = root
        self._blocks = blocks
        self._torch: Any = None
        self._which = "none"
        self._classes: dict[type, type] = {}
        self._blocks_of_roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._turned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._again: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_graphs = 0
        graphs.watch(self._compiled)

    def install(self, torch: Any) -> None:
        """Bind torch."""
        self._torch = torch

    @property
    def wanted(self) -> bool:
        """Whether blocks are to be checkpointed."""
        return self._which != "none"

    def set(self, which: str) -> None:
        """Set the mode: ``none``, ``selective`` (every second block) or ``full``."""
        self._which = which
        self._blocks.ours = self.wanted
        self._undo.then(self._release)

    def observed(self) -> str | None:
        """Return the mode, from the blocks recomputed in a backward pass; None before one was observed.

        ``full`` if the script uses checkpointing itself.
        """
        if "root" in self._state.faults.off:
            return None
        if not self.wanted:
            # The extent of the script's own checkpointing is not measured.
            if self._blocks.checkpointed or self._in_graphs:
                return "full"
            return "none" if self._root.calls else None
        share = len(self._again)
        if self._in_graphs and not share:
            # Identical blocks that are compiled one by one share a graph.
            turned = len(self._turned)
            share = turned if self._root.compiles_blocks else min(self._in_graphs, turned)
        if not share:
            if self._state.steps and self._root.calls:
                self._refuse("No block was recomputed in a backward pass.")
            return None
        every = len(self._blocks_of_roots)
        if share >= every:
            return "full"
        return "selective" if share >= (every + 1) // 2 else None

    def _refuse(self, reason: str) -> None:
        self._state.refusals.setdefault(_KNOB, reason)

    # Root part

    def convert(self, module: Any) -> None:
        """Change the class of the blocks in a newly found root."""
        blocks = self._blocks.of(module)
        if not blocks:
            if not self._turned:
                self._refuse("The trained module has no repeated blocks that could be checkpointed.")
            return
        self._state.refusals.pop(_KNOB, None)
        self._blocks_of_roots.update(blocks)
        for block in blocks if self._which == "full" else blocks[::2]:
            kind = plain_class(block)
            try:
                block.__class__ = self._class_of(kind)
            except TypeError as error:
                self._refuse(f"The class {kind.__name__} of the blocks cannot be extended: {error}.")
                return
            self._turned.add(block)

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the root's inputs unchanged."""
        return args, kwargs

    def _class_of(self, kind: type) -> type:
        found = self._classes.get(kind)
        if found is None:
            found = self._classes[kind] = self._made(kind)
        return found

    def _made(self, kind: Any) -> type:
        torch, state, again = self._torch, self._state, self._again
        checkpoint: Any = importlib.import_module("torch.utils.checkpoint").checkpoint
        plain, reduce_ex = kind.forward, kind.__reduce_ex__
        is_compiling, with_gradients = torch.compiler.is_compiling, torch.is_grad_enabled

        def body(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and state.in_backward:
                again.add(this)
            return plain(this, *args, **kwargs)

        @functools.wraps(plain)
        def forward(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not with_gradients():
                return plain(this, *args, **kwargs)
            inner = this._autotune_body
            if kwargs:
                # Some keyword names are parameters of the function called here.
                inner = functools.partial(inner, **kwargs)
            return checkpoint(inner, *args, use_reentrant=False, preserve_rng_state=True)

        def reduce(this: Any, protocol: Any) -> Any:
            made = reduce_ex(this, protocol)
            if isinstance(made, str) or made[1] != (type(this),):
                return made
            # Assignment to `__class__` requires a compatible class; this call accepts another one.
            return (_made_anew, (kind, object, None), *made[2:])

        names = {
            "forward": forward,
            _BODY: body,
            PLAIN: kind,
            "__reduce_ex__": reduce,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
        }
        return type(kind)(kind.__name__, (kind,), names)

    def _compiled(self, names: list[str]) -> None:
        self._in_graphs += names.count(_NODE)

    def _release(self) -> None:
        for block in self._turned:
            block.__class__ = plain_class(block)
        self._turned.clear()
        self._which = "none"
        self._blocks.ours = False
