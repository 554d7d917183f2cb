"""Whether a pass over an iterable dataset depends on the passes before it, and what its workers share out.

Both are found out in children of this process, which read passes of their own. A stream has no indices, so
that what is compared is how a pass begins: now, and after another one.
"""

# Scripts pass values of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dis
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from autotune.trial.records.forked_probe import answer_of
from autotune.trial.records.sample_digests import digest, seed_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType

    from autotune.trial.hooks.data.held_state import StateSnapshot

_OPENING: Final = 16
"""Samples by which the beginnings of two passes are compared."""
_LIMIT_S: Final = 3.0
"""For a child that reads a whole pass, while the training waits: a share of the shortest budget, 60 s."""
_SHARE_S: Final = 1.0
"""The same where each stream is asked: rests of workers matter in short passes."""


class StreamState:
    """Questions about the passes over one iterable dataset.

    Args:
        dataset: The stream.
        snapshot: Makes a snapshot of what can be reached from it.
        begin: Begins a child as one of two workers, by its number.
        torch: The module.
    """

    def __init__(
        self, dataset: Any, snapshot: Callable[[], StateSnapshot], begin: Callable[[int], None], torch: Any
    ) -> None:
        self._dataset = dataset
        self._snapshot = snapshot
        self._begin = begin
        self._torch = torch
        self.moved: list[str] = []
        """Paths of what had changed when the later of two passes that were compared had begun."""

    def depends(self, count: int | None) -> bool | None:
        """Whether a pass begins otherwise after another one.

        Args:
            count: Samples that are read of the other one; None for all of it.

        Returns:
            None if that cannot be found out, or if the samples are alike and what is held is not.
        """
        now, again, later = (answer_of(lambda n=n: self._opening(n), limit_s=_LIMIT_S) for n in (0, 0, count))
        self.moved = [] if later is None else [path for path, _ in later[1]]
        if now is None or later is None or now != again:
            return None
        return True if now[0] != later[0] else False if now == later else None

    def shares(self) -> tuple[int, ...]:
        """Samples of a pass, and of each of two workers; empty if a pass takes too long."""
        found: list[int] = []
        for worker in (None, 0, 1):
            length = answer_of(lambda w=worker: self._length(w), limit_s=_SHARE_S)
            if length is None:
                return ()
            found.append(length)
        return tuple(found)

    def _opening(self, count: int | None) -> tuple[list[str], list[tuple[str, str]]]:
        """In a child: the first samples of a pass, and what has changed by then."""
        self._torch.set_num_threads(1)
        before = self._snapshot()
        if count != 0:
            seed_all(self._torch, 1)
            for _ in islice(iter(self._dataset), count):
                pass
        seed_all(self._torch, 2)
        samples = [digest(sample, self._torch) for sample in islice(iter(self._dataset), _OPENING)]
        return samples, [(p.node.path, repr(p.token)) for p in self._snapshot().moved_since(before)]

    def _length(self, worker: int | None) -> int:
        """In a child: the samples of a pass, of one of two workers or without any."""
        self._torch.set_num_threads(1)
        if worker is not None:
            self._begin(worker)
        return sum(1 for _ in self._dataset)


def carried(codes: Iterable[CodeType]) -> set[str]:
    """Names of attributes and globals that code of a pass both reads and sets: ``self.at += 1``."""
    read: set[str] = set()
    stored: set[str] = set()
    for code in codes:
        for instruction in (i for inner in _nested(code) for i in dis.get_instructions(inner)):
            if instruction.opname in ("STORE_ATTR", "STORE_GLOBAL"):
                stored.add(str(instruction.argval))
            elif instruction.opname in ("LOAD_ATTR", "LOAD_GLOBAL"):
                read.add(str(instruction.argval))
    return read & stored


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _nested(constant)
