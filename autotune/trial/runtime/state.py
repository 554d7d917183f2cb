"""State shared by the hooks of one training process. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

from autotune.trial.records.steady_steps import SteadySteps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from autotune.trial.runtime.faults import Faults
    from autotune.trial.runtime.memory import DeviceClock

EVALUATION, COMPILE, NEW_SHAPE, COLLECTION, LOADER, ALLOCATOR, ROLLOUT = 1, 2, 4, 8, 16, 32, 64

_ident = threading.get_ident
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = re.compile(r".*[\\/](?:site|dist)-packages[\\/](?P<name>[^\\/]+)(?:[\\/]|$)")
_FRAMEWORKS = frozenset({"torch", "accelerate", "transformers", "lightning", "pytorch_lightning", "ignite"})
"""Packages that call loaders and autocast on behalf of their own callers, found further up the stack."""
_CALLS = re.compile(r"^from (?P<name>\w+)[\w.]* import ", re.MULTILINE)
_HEAD = 4096


class RuntimeState:
    """Counters since the last boundary and switches, written by the hooks, read at the boundary.

    `active` is False in forked children: every wrapper is then transparent.
    """

    def __init__(self, faults: Faults, script: str) -> None:
        self.faults = faults
        self.script_dir = os.path.dirname(os.path.abspath(script))
        self._package = _installed_package(os.path.abspath(script))
        self.active = True
        self.main = threading.get_ident()
        self.depth = 0
        self.in_backward = False
        self.device_clock: DeviceClock | None = None
        """Set by the recorder in a measured process that trains on an accelerator."""
        self.capturing: Callable[[], bool] = _never
        """Whether work launched now is captured into a CUDA graph instead of executed."""
        self.keeps_losses = True
        """False under `apply`, which records no losses."""
        self.lost: Callable[[str, str], None] = _nothing
        """Called with a knob and the reason if a hook stops applying it during a run."""
        self.beat: Callable[[], None] = _silent
        """Sends a heartbeat to the launcher while no step ends."""
        self.calm = SteadySteps(self.main)
        """Steps that were noted but not counted yet."""
        self.mark = 0
        """Bits of the events since the last boundary."""
        self.evaluating = False
        """An evaluation is in progress, or may have begun, since the last sign of training."""
        self._evaluates_ns = 0
        self._maybe_ns = 0
        self._aside_ns = 0
        self.fetched_elsewhere = False
        """The last batch came from a loader that has not been used for training."""
        self.evaluates_loader = False
        """The current evaluation fetched from a loader without gradients."""
        self.called_to_evaluate = self.called_to_train = False
        """Modes of trained modules in calls with gradients since the last fetch."""
        self.wait_ns = 0
        self.input_samples = 0
        self.batches = 0
        self.backwards = 0
        self.losses: list[tuple[Any, float]] = []
        self.steps = 0
        self.micro_steps = 0
        self.samples_total = 0
        self.ranks = 1
        """Number of ranks. Each takes equally many samples; those of a step are summed over ranks."""
        self.spawned_as: tuple[int, int] | None = None
        """Number of this rank and number of ranks, if the script itself started it; None for a launcher."""
        self.at_step: list[Callable[[], None]] = []
        """Callbacks at the end of a step; their time counts for the next one."""
        self.refusals: dict[str, str] = {}
        """Knob -> message, for knobs that a hook cannot apply."""
        self.compile_ns = 0
        self.compile_events = 0
        self.replays = False
        """A probe replays cached batches, to time the loop without its loader."""
        self.xla_events = 0
        """Number of JAX compilations; `torch.compile` is counted separately, as it marks a compiled model."""
        self.compile_begun_ns = 0
        self.began_ns = 0
        """Start of the first step: the first fetch or call with gradients on."""
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.active = False
        self.calm.drop()

    def note(self, bits: int) -> None:
        """Record events; during an evaluation also send a heartbeat."""
        self.mark |= bits
        if self.mark & EVALUATION and self.here():
            self.alive()

    def alive(self) -> None:
        """Send a heartbeat; errors such as a full disk never reach the script."""
        try:
            self.beat()
        except Exception as error:
            self.faults.note("beat", error)

    def evaluates(self, since_ns: int, *, by_loader: bool = False) -> None:
        """Record an evaluation that began at this time at the latest."""
        self.evaluates_loader = self.evaluates_loader or by_loader
        self.note(EVALUATION)
        if not self._evaluates_ns:
            begun_ns, self._maybe_ns = self._maybe_ns, 0
            self._evaluates_ns = begun_ns or since_ns
            self.evaluating = True
            if self.device_clock is not None and not begun_ns:
                self.device_clock.aside_begins()

    def may_evaluate(self, since_ns: int) -> None:
        """Record that a loader not yet used for training is read, the start of a possible evaluation."""
        if not self.evaluating:
            self._maybe_ns = since_ns
            self.evaluating = bool(since_ns)
            if self.device_clock is not None:
                self.device_clock.aside_begins()

    def trains(self, now_ns: int) -> None:
        """Record a sign of training, which ends an evaluation in progress."""
        self.evaluates_loader = False
        if self._evaluates_ns:
            self._aside_ns += max(0, now_ns - self._evaluates_ns)
            self._evaluates_ns = 0
            if self.device_clock is not None:
                self.device_clock.aside_ends()
        self._was_none()
        self.evaluating = False

    def collects(self, now_ns: int) -> None:
        """Record that training data is gathered, which ends an evaluation in progress."""
        self.trains(now_ns)
        self.mark |= ROLLOUT
        self.alive()

    def _was_none(self) -> None:
        """Discard a possible evaluation."""
        if self._maybe_ns:
            self._maybe_ns = 0
            if self.device_clock is not None:
                self.device_clock.aside_withdrawn()

    def take_aside_ns(self) -> int:
        """Return the evaluation time since the last boundary in ns, -1 if its end was not observed."""
        aside_ns = -1 if self._evaluates_ns else self._aside_ns
        self.evaluates_loader = False
        self._evaluates_ns = self._aside_ns = 0
        self._was_none()
        self.evaluating = False
        return aside_ns

    def here(self) -> bool:
        """Return whether this is the main thread of the training process itself."""
        return self.active and _ident() == self.main

    def is_users(self, name: str) -> bool:
        """Return whether a code file belongs to the user, or to the installed package that is run."""
        return is_user_file(name) or (bool(self._package) and name.startswith(self._package))

    def place(self, name: str, line: int) -> str:
        """Return ``file.py:12``, relative to the script's folder."""
        path = os.path.abspath(name)
        inside = path.startswith(self.script_dir + os.sep)
        return f"{os.path.relpath(path, self.script_dir) if inside else os.path.basename(path)}:{line}"

    def user_frames(self, frame: FrameType | None, limit: int = 2) -> list[str]:
        """Return ``file.py:12`` of the innermost frames outside all libraries."""
        found: list[str] = []
        while frame is not None and len(found) < limit:
            name = frame.f_code.co_filename
            if self.is_users(name):
                found.append(self.place(name, frame.f_lineno))
            frame = frame.f_back
        return found


def _installed_package(script: str) -> str:
    """Return the location of the installed package that is run, by ``python -m`` or its console script.

    Returns:
        Its folder, or its file if it is a single one; empty if the program is the user's own.
    """
    path = script if _PACKAGES.search(script) else _wrapped(script)
    found = _PACKAGES.search(path)
    if found is None or found["name"] in _FRAMEWORKS:
        return ""
    return path[: found.end()]


def _wrapped(script: str) -> str:
    """Return the file of the package that a console script calls, in the format of installers; else empty."""
    if os.path.splitext(script)[1]:
        return ""
    try:
        with open(script, encoding="utf-8") as file:
            text = file.read(_HEAD)
        called = _CALLS.search(text) if "sys.exit(" in text else None
        spec = None if called is None else importlib.util.find_spec(called["name"])
    except Exception:  # no text, or a package that cannot be found
        return ""
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] + os.sep if places else (spec.origin or "") if spec is not None else ""


def _silent() -> None:
    return


def _never() -> bool:
    return False


def _nothing(_knob: str, _reason: str) -> None:
    return


def is_ours(name: str) -> bool:
    """Return whether a code file is part of autotune."""
    return name.startswith(_OWN)


def is_user_file(name: str) -> bool:
    """Return whether a code file belongs to the user: no library, no autotune, no generated code."""
    if name.startswith("<") or "site-packages" in name or "dist-packages" in name:
        return False
    return not name.startswith((_OWN, _LIBRARY))


def caller(depth: int) -> FrameType | None:
    """Return the frame this many levels above the caller; None if the stack is shorter."""
    try:
        return sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return None
