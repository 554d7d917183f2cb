"""Kernels of `scaled_dot_product_attention`: which are allowed, and whether it was called.

The kernel depends on process-wide switches, not on the name by which a script calls the function. The
function itself is replaced during detection, to observe calls, torch's own choice, and the switches at that
moment.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import AttentionFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.hooks.model.dynamo_graphs import Graphs
    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

NAME: Final = "scaled_dot_product_attention"
_SWITCHES: Final = {"flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn", "math": "math"}
_NODES: Final = {
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
}
_PASSED_ON: Final = ("Slice", "UnsafeView", "View", "Alias")
_MASK_AT, _DROPOUT_AT = 3, 4
_CAUSAL: Final = "CausalBias"
"""A mask that torch replaces by the causal flag: no tensor reaches the kernel."""


class Attention:
    """Implements `AttentionHook`."""

    def __init__(self, state: RuntimeState, undo: Undo, root: TrainedModules, graphs: Graphs) -> None:
        self._state = state
        self._undo = undo
        self._root = root
        self._graphs = graphs
        self._backends: Any = None
        self._wanted = "auto"
        self._before: frozenset[str] = frozenset()
        self._watching = False
        self._calls = 0
        self._allowed: set[frozenset[str]] = set()
        self._kernels: set[str] = set()
        self._dtype = ""
        self._dropout = False
        self._masked = False
        self._wrapper: Any = None
        self._original: Any = None

    # Hook

    def force(self, kernel: str) -> None:
        """Disable every other kernel; ``auto`` does not change the switches."""
        if kernel == "auto":
            return
        self._wanted = kernel
        if kernel not in self._switches():
            self._refuse(f"This PyTorch has no switch for the {kernel} kernel.")
            return
        for name in self._switches():
            setter = getattr(self._backends, f"enable_{_SWITCHES[name]}_sdp")
            self._undo.call(setter, name == kernel, undo=name in self._before)

    def observed(self) -> str | None:
        """Return the kernel enabled at the call, ``auto`` for torch's choice; None: no call yet."""
        if "attention" in self._state.faults.off:
            return None
        if not self._allowed:
            if self._wanted != "auto" and not self._watching:
                self._refuse(f"The run called no {NAME} with gradients.")
            return None
        if len(self._allowed) > 1:
            return "mixed"
        (allowed,) = self._allowed
        if self._wanted == "auto" and allowed == self._before:
            return "auto"
        if len(allowed) != 1:
            return "mixed"
        (kernel,) = allowed
        if self._kernels - {kernel}:
            # The result's graph node shows the kernel that was used, whatever the switches.
            return "mixed"
        return kernel

    def facts(self) -> AttentionFacts | None:
        """Return observed facts; None without a call."""
        if not self._allowed:
            return None
        return AttentionFacts(
            calls=self._calls,
            kernel=next(iter(self._kernels)) if len(self._kernels) == 1 else "",
            dtype=self._dtype,
            dropout=self._dropout,
            masked=self._masked,
            restricted=any(allowed != self._before for allowed in self._allowed) and self._wanted == "auto",
        )

    def _refuse(self, reason: str) -> None:
        self._state.refusals.setdefault("attention_backend", reason)

    # Watching

    def install(self, torch: Any) -> None:
        """Store the current switches, and observe calls until detection has settled."""
        self._backends = torch.backends.cuda
        self._before = self._now()
        self._graphs.watch(self._compiled)
        original = getattr(torch.nn.functional, NAME, None)
        if original is None:
            return
        self._original, self._wrapper = original, self._watched(original, torch)
        self._watching = True
        self._undo.assign(torch.nn.functional, NAME, self._wrapper)
        self._undo.then(self._unwatch)
        self._root.swap_while_detecting(torch.nn.functional, NAME, original, self._wrapper)
        self._root.on_dropped.append(self._unwatch)
        self._register_with_jit()

    def _watched(self, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        state = self._state
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def attention(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._watching:
                return original(*args, **kwargs)
            out = original(*args, **kwargs)
            if state.here() and "attention" not in state.faults.off:
                try:
                    self._note(args, kwargs, out)
                except Exception as error:
                    state.faults.note("attention", error)
            return out

        return attention

    def _note(self, args: Any, kwargs: Any, out: Any) -> None:
        if getattr(out, "grad_fn", None) is None:
            return
        self._calls += 1
        self._allowed.add(self._now())
        self._kernels.add(_kernel(out.grad_fn))
        dropout_p = kwargs.get("dropout_p", args[_DROPOUT_AT] if len(args) > _DROPOUT_AT else 0.0)
        self._dropout = self._dropout or bool(dropout_p)
        mask = kwargs.get("attn_mask", args[_MASK_AT] if len(args) > _MASK_AT else None)
        self._masked = self._masked or (mask is not None and type(mask).__name__ != _CAUSAL)
        query = args[0] if args else kwargs["query"]
        self._dtype = str(query.dtype).removeprefix("torch.")

    def _compiled(self, names: list[str]) -> None:
        calls = sum(name == NAME for name in names)
        if calls:
            self._calls += calls
            self._allowed.add(self._now())

    def _unwatch(self) -> None:
        """Restore the plain function in every module that imported it by name, after detection."""
        if not self._watching:
            return
        self._watching = False
        # Compiled code was traced with the object under this name; another one would be traced again.
        if self._root.compiles:
            return
        for module in list(sys.modules.values()):
            held = getattr(module, "__dict__", None)
            if not isinstance(held, dict):
                continue
            for name in [n for n, value in list(held.items()) if value is self._wrapper]:
                held[name] = self._original

    def _register_with_jit(self) -> None:
        """Register the replacement for TorchScript, which recognizes the function by identity."""
        try:
            known: Any = sys.modules["torch.jit._builtins"]
            pair = (self._wrapper, f"aten::{NAME}")
            known._builtin_ops.append(pair)
            self._undo.then(lambda: known._builtin_ops.remove(pair))
            table = known._builtin_table
            if table is not None:
                table[id(self._wrapper)] = pair[1]
        except (KeyError, AttributeError):
            return

    # Switches

    def _switches(self) -> list[str]:
        known = self._backends
        return [
            name
            for name, stem in _SWITCHES.items()
            if hasattr(known, f"enable_{stem}_sdp") and hasattr(known, f"{stem}_sdp_enabled")
        ]

    def _now(self) -> frozenset[str]:
        return frozenset(
            name for name in self._switches() if getattr(self._backends, f"{_SWITCHES[name]}_sdp_enabled")()
        )


def _kernel(function: Any) -> str:
    """Return the kernel of a result from its graph node; without a node of its own it is math."""
    for _ in range(4):
        name = type(function).__name__
        for start, kernel in _NODES.items():
            if name.startswith(start):
                return kernel
        following = getattr(function, "next_functions", ())
        if not name.startswith(_PASSED_ON) or not following or following[0][0] is None:
            break
        function = following[0][0]
    return "math"
