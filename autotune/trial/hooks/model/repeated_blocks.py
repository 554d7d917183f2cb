"""Repeated blocks of a module, and whether recomputing one gives the same result."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, Final

from autotune.model.facts import BlockFacts
from autotune.trial.runtime.state import caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.trial.runtime.state import RuntimeState

PLAIN: Final = "_autotune_plain"
_MOST_HELD: Final = 64


class RepeatedBlocks:
    """Finds repeated blocks, and observes them in the probed calls of the root."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._torch: Any = None
        self._ran: set[int] = set()
        self._before: dict[int, tuple[Any, Any, Any]] = {}
        self.ours = False
        """Autotune's own checkpointing is active, so that its detection does not concern the script."""
        self.watched = False
        self.checkpointed = False
        self.changes_input = False
        self.changes_state = False
        self.host_random = False

    def install(self, torch: Any) -> None:
        """Bind torch."""
        self._torch = torch

    def of(self, root: Any) -> list[Any]:
        """Return the blocks of this module: of one class, in one container, with most parameters.

        Blocks have submodules; a chain of plain layers has none. Empty if there are fewer than two.
        """
        nn = self._torch.nn
        by_class: dict[type, list[Any]] = {}
        inside: dict[type, set[int]] = {}
        for container in root.modules():
            if not isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
                continue
            if self._is_script(container):
                continue
            for kind, members in _alike(container, nn).items():
                held = inside.setdefault(kind, set())
                for block in members:
                    if id(block) not in held:
                        held.update(id(m) for m in block.modules())
                        by_class.setdefault(kind, []).append(block)
        return max(by_class.values(), key=self._parameters, default=[])

    def _parameters(self, blocks: list[Any]) -> int:
        # Parameters of lazy modules have no size before the first call.
        lazy = self._torch.nn.parameter.is_lazy
        return sum(p.numel() for block in blocks for p in block.parameters() if not lazy(p))

    def facts(self, root: Any) -> BlockFacts | None:
        """Return the facts about the blocks; None if the module has none."""
        blocks = self.of(root)
        if not blocks or "blocks" in self._state.faults.off:
            return None
        shapes = {tuple((n, tuple(p.shape)) for n, p in block.named_parameters()) for block in blocks}
        return BlockFacts(
            name=plain_class(blocks[0]).__name__,
            count=len(blocks),
            alike=len(shapes) == 1,
            watched=self.watched,
            checkpointed=self.checkpointed,
            changes_input=self.changes_input,
            changes_state=self.changes_state,
            host_random=self.host_random,
        )

    def hooks(self, root: Any) -> list[Any]:
        """Observe the blocks during one call of the root; return the handles to remove the hooks."""
        found: list[Any] = []
        try:
            if not self.checkpointed and not self.ours:
                parts = [m for m in root.modules() if m._parameters and not self._is_script(m)]
                found.extend(part.register_forward_pre_hook(self._runs) for part in parts)
            for block in self.of(root):
                found.append(block.register_forward_pre_hook(self._begins, with_kwargs=True))
                found.append(block.register_forward_hook(self._ended, with_kwargs=True))
        except Exception as error:
            self._state.faults.note("blocks", error)
        return found

    def _is_script(self, module: Any) -> bool:
        return isinstance(module, self._torch.jit.ScriptModule)

    def _runs(self, _module: Any, _args: Any) -> None:
        if not self.checkpointed and _in_checkpoint():
            self.checkpointed = True

    def _begins(self, block: Any, args: Any, kwargs: Any) -> None:
        try:
            self._before[id(block)] = (_versions(args, kwargs), _state(block), host_streams())
        except Exception as error:
            self._state.faults.note("blocks", error)

    def _ended(self, block: Any, _args: Any, _kwargs: Any, _out: Any) -> None:
        before = self._before.pop(id(block), None)
        if before is None:
            return
        try:
            self._judge(block, *before)
        except Exception as error:
            self._state.faults.note("blocks", error)

    def _judge(self, block: Any, versions: list[tuple[Any, int]], state: Any, drawn: Any) -> None:
        self.watched = True
        if any(tensor._version != version for tensor, version in versions):
            self.changes_input = True
        if drawn != host_streams():
            self.host_random = True
        if id(block) not in self._ran:
            # A block may initialize its state when it runs for the first time.
            self._ran.add(id(block))
        elif state != _state(block):
            self.changes_state = True


def plain_class(block: Any) -> type:
    """Return the script's class of a block, also if autotune has changed it."""
    return vars(type(block)).get(PLAIN, type(block))


def _alike(container: Any, nn: Any) -> dict[type, list[Any]]:
    """Return children that could be blocks, by class, without classes of a single child."""
    groups: dict[type, list[Any]] = {}
    for child in container.children():
        whole = next(child.children(), None) is not None and next(child.parameters(), None) is not None
        if whole and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            groups.setdefault(plain_class(child), []).append(child)
    return {kind: members for kind, members in groups.items() if len(members) > 1}


def _versions(args: Any, kwargs: Any) -> list[tuple[Any, int]]:
    return [(t, t._version) for t in _tensors([*args, *kwargs.values()], 2) if not t.is_inference()]


def _tensors(values: Any, depth: int) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "_version") and hasattr(value, "is_inference"):
            yield value
        elif depth and isinstance(value, (list, tuple)) and len(value) <= _MOST_HELD:
            yield from _tensors(value, depth - 1)


def _state(block: Any) -> list[Any]:
    """Return the state of a block and its parts: buffers by version, everything else by identity."""
    found: list[Any] = [(id(b), b._version) for b in block.buffers()]
    for module in block.modules():
        held = {k: id(v) for k, v in vars(module).items() if k != "_compiled_call_impl"}
        found.append(held)
    return found


def host_streams() -> Any:
    """Return the state of the generators of Python and NumPy; torch restores its own on recomputation."""
    numpy: Any = sys.modules.get("numpy.random")
    drawn = None
    if numpy is not None:
        _, keys, position, *_rest = numpy.get_state()
        drawn = (keys.tobytes(), int(position))
    return random.getstate(), drawn


def _in_checkpoint() -> bool:
    frame = caller(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(("/utils/checkpoint.py", "\\utils\\checkpoint.py")):
            return True
        frame = frame.f_back
    return False
