"""Source of the training loop, found on the stacks of backward passes."""

from __future__ import annotations

import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from autotune.source.loops import UNREAD, Frame, is_only_pass, running_hazards
from autotune.trial.runtime.state import caller, is_ours, is_user_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_MOST_STACKS = 8
_MOST_FRAMES = 100
_MOST_CHARACTERS = 400_000
"""A syntax tree takes some forty times the memory of its source, and peak memory is measured."""
_DRIVEN = "deepspeed"
"""DeepSpeed steps by itself at any accumulation, so its use of gradients is not in the loop."""
_TELLING = re.compile(r"\.grad\b|[\"']lr[\"']|parameters\(|state_dict\(|_foreach_")


class Loops:
    """Stacks of backward passes, as source text."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[tuple[str, int], ...], list[Frame] | None] = {}
        self._judged = 0
        self._hazards: frozenset[str] = frozenset()

    def note(self, torch: Any) -> list[FrameType]:
        """Record the start of a backward pass.

        Returns:
            Its frames, innermost first; empty if the stack is known.
        """
        if len(self._stacks) >= _MOST_STACKS:
            return []
        frames = frames_here(torch)
        key = tuple((frame.f_code.co_filename, frame.f_lineno) for frame in frames)
        if key in self._stacks:
            return []
        self._stacks[key] = _read(frames)
        return frames

    def has_one_pass(self) -> bool:
        """Return whether all of them are in one loop, which ends with its passes over the data only."""
        modules = list(_user_sources())
        stacks = self._stacks.values()
        return bool(stacks) and all(held is not None and is_only_pass(held, modules) for held in stacks)

    def hazards(self) -> tuple[str, ...]:
        """Return the hazards of `autotune.source.loops` for all of them; slow, as it parses sources."""
        if not self._stacks:
            return (UNREAD,)
        if self._judged != len(self._stacks):
            self._judged = len(self._stacks)
            modules = list(_user_sources())
            self._hazards = frozenset().union(
                *(
                    {UNREAD} if frames is None else running_hazards(frames, modules)
                    for frames in self._stacks.values()
                )
            )
        return tuple(sorted(self._hazards))


def frames_here(torch: Any) -> list[FrameType]:
    """Return the calling frames of the script, and of libraries that train for it, innermost first."""
    return list(_frames(caller(0), os.path.dirname(torch.__file__) + os.sep))


def _frames(frame: FrameType | None, torch_folder: str) -> Iterator[FrameType]:
    """Yield frames of the script and of libraries that train for it."""
    seen = 0
    while frame is not None and seen < _MOST_FRAMES:
        seen += 1
        name = frame.f_code.co_filename
        library = "site-packages" in name or "dist-packages" in name
        driven = str(frame.f_globals.get("__name__", "")).partition(".")[0] == _DRIVEN
        trains = library and not (name.startswith(torch_folder) or is_ours(name))
        if not driven and (trains or is_user_file(name) or _is_generated(name)):
            yield frame
        frame = frame.f_back


def _is_generated(name: str) -> bool:
    return name.startswith("<") and not name.startswith("<frozen ")


def _read(frames: list[FrameType]) -> list[Frame] | None:
    """Return their current sources; None if one cannot be read."""
    found: list[Frame] = []
    for frame in frames:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        if not lines:
            return None
        found.append(Frame("".join(lines), frame.f_lineno, frame.f_code.co_name))
    return found


def _user_sources() -> Iterator[str]:
    """Yield sources of the user's modules, most relevant first."""
    texts: list[str] = []
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and name.endswith(".py") and is_user_file(name):
            texts.append("".join(linecache.getlines(name, vars(module))))
    left = _MOST_CHARACTERS
    for text in sorted(set(texts), key=lambda text: _TELLING.search(text) is None):
        left -= len(text)
        if left > 0:
            yield text
