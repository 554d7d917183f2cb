"""Dependence of passes over an iterable dataset on earlier passes, and its shards per worker.

Both are determined in children of this process, which read their own passes. A stream has no indices, so the
starts of passes are compared: now, and after another one.
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
"""Number of samples used to compare the starts of two passes."""
_LIMIT_S: Final = 3.0
"""Limit for a child that reads a whole pass while the training waits; part of the shortest budget, 60 s."""
_SHARE_S: Final = 1.0
"""The same if each stream is tested: rests of workers matter in short passes."""


class StreamState:
    """Tests of the passes over one iterable dataset.

    Args:
        dataset: The stream.
        snapshot: Makes a snapshot of reachable state.
        begin: Starts a child as one of two workers, by its number.
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
        """Paths of the state that differed when the later of two compared passes began."""

    def depends(self, count: int | None) -> bool | None:
        """Return whether a pass starts differently after another one.

        Args:
            count: Number of samples read from the other one; None for all.

        Returns:
            None if it cannot be determined, or if the samples are equal but the state is not.
        """
        now, again, later = (answer_of(lambda n=n: self._opening(n), limit_s=_LIMIT_S) for n in (0, 0, count))
        self.moved = [] if later is None else [path for path, _ in later[1]]
        if now is None or later is None or now != again:
            return None
        return True if now[0] != later[0] else False if now == later else None

    def shares(self) -> tuple[int, ...]:
        """Return the samples of a pass, and of each of two workers; empty if a pass takes too long."""
        found: list[int] = []
        for worker in (None, 0, 1):
            length = answer_of(lambda w=worker: self._length(w), limit_s=_SHARE_S)
            if length is None:
                return ()
            found.append(length)
        return tuple(found)

    def _opening(self, count: int | None) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the first samples of a pass, and the state changed by then; runs in a child."""
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
        """Return the samples of a pass, of one of two workers or without any; runs in a child."""
        self._torch.set_num_threads(1)
        if worker is not None:
            self._begin(worker)
        return sum(1 for _ in self._dataset)


def carried(codes: Iterable[CodeType]) -> set[str]:
    """Return names of attributes and globals that code of a pass both reads and sets: ``self.at += 1``."""
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
