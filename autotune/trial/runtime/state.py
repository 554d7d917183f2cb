"""What the hooks of one training process share. Standard library only."""

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
"""What loaders and autocast are asked for on behalf of others, who are looked for above them."""
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
        """Where an accelerator trains in a measured process; the recorder sets it."""
        self.capturing: Callable[[], bool] = _never
        """Whether what is launched now is recorded into a CUDA graph instead of run."""
        self.keeps_losses = True
        """False under `apply`, where no loss is recorded."""
        self.lost: Callable[[str, str], None] = _nothing
        """Told of a knob and why, where a hook stops carrying it out in the middle of a run."""
        self.beat: Callable[[], None] = _silent
        """Tells the launcher that the process is alive where no step ends."""
        self.calm = SteadySteps(self.main)
        """Steps that are noted and not counted yet."""
        self.mark = 0
        """Bits of what happened since the last boundary."""
        self.evaluating = False
        """An evaluation goes on, or may have begun, since the last sign of training."""
        self._evaluates_ns = 0
        self._maybe_ns = 0
        self._aside_ns = 0
        self.asks_elsewhere = False
        """The last batch came from a loader that has not trained."""
        self.asked_loader = False
        """The evaluation that goes on asked a loader without gradients."""
        self.called_to_evaluate = self.called_to_train = False
        """How trained modules were called with gradients on since the last fetch."""
        self.wait_ns = 0
        self.input_samples = 0
        self.batches = 0
        self.backwards = 0
        self.losses: list[tuple[Any, float]] = []
        self.steps = 0
        self.micro_steps = 0
        self.samples_total = 0
        self.ranks = 1
        """Processes that train together. Each takes as many samples; those of a step are of all of them."""
        self.at_step: list[Callable[[], None]] = []
        """Called when a step has ended; their time belongs to the next one."""
        self.refusals: dict[str, str] = {}
        """Knob -> sentence, for knobs that a hook found it cannot carry out."""
        self.compile_ns = 0
        self.compile_events = 0
        self.replays = False
        """Batches are given out again, by us, to see what the loop does without its loader."""
        self.xla_events = 0
        """Compilations of JAX, beside those of `torch.compile`, by which alone a compiled model is known."""
        self.compile_begun_ns = 0
        self.began_ns = 0
        """When the first step began: the first fetch or call with gradients on."""
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.active = False
        self.calm.drop()

    def note(self, bits: int) -> None:
        """Something has happened; while an evaluation goes on it is a sign of life as well."""
        self.mark |= bits
        if self.mark & EVALUATION and self.here():
            self.alive()

    def alive(self) -> None:
        """Tell the launcher; what hinders that, a full disk, never reaches the script."""
        try:
            self.beat()
        except Exception as error:
            self.faults.note("beat", error)

    def evaluates(self, since_ns: int, *, by_loader: bool = False) -> None:
        """A sign of evaluation; it began no later than then."""
        self.asked_loader = self.asked_loader or by_loader
        self.note(EVALUATION)
        if not self._evaluates_ns:
            begun_ns, self._maybe_ns = self._maybe_ns, 0
            self._evaluates_ns = begun_ns or since_ns
            self.evaluating = True
            if self.device_clock is not None and not begun_ns:
                self.device_clock.aside_begins()

    def may_evaluate(self, since_ns: int) -> None:
        """A loader that has not trained yet is asked: if an evaluation follows, this is where it begins."""
        if not self.evaluating:
            self._maybe_ns = since_ns
            self.evaluating = bool(since_ns)
            if self.device_clock is not None:
                self.device_clock.aside_begins()

    def trains(self, now_ns: int) -> None:
        """A sign of training: an evaluation that went on is over."""
        self.asked_loader = False
        if self._evaluates_ns:
            self._aside_ns += max(0, now_ns - self._evaluates_ns)
            self._evaluates_ns = 0
            if self.device_clock is not None:
                self.device_clock.aside_ends()
        self._was_none()
        self.evaluating = False

    def collects(self, now_ns: int) -> None:
        """A sign that what is trained on next is gathered: no evaluation, and one that went on is over."""
        self.trains(now_ns)
        self.mark |= ROLLOUT
        self.alive()

    def _was_none(self) -> None:
        """What may have been an evaluation was none."""
        if self._maybe_ns:
            self._maybe_ns = 0
            if self.device_clock is not None:
                self.device_clock.aside_withdrawn()

    def take_aside_ns(self) -> int:
        """Evaluation since the last boundary in nanoseconds, -1 where its end was not seen."""
        aside_ns = -1 if self._evaluates_ns else self._aside_ns
        self.asked_loader = False
        self._evaluates_ns = self._aside_ns = 0
        self._was_none()
        self.evaluating = False
        return aside_ns

    def here(self) -> bool:
        """In the training process itself, in its main thread."""
        return self.active and _ident() == self.main

    def is_users(self, name: str) -> bool:
        """Whether code of this file is the user's, or of the installed package that is run."""
        return is_user_file(name) or (bool(self._package) and name.startswith(self._package))

    def place(self, name: str, line: int) -> str:
        """``file.py:12``, relative to the script's folder."""
        path = os.path.abspath(name)
        inside = path.startswith(self.script_dir + os.sep)
        return f"{os.path.relpath(path, self.script_dir) if inside else os.path.basename(path)}:{line}"

    def user_frames(self, frame: FrameType | None, limit: int = 2) -> list[str]:
        """``file.py:12`` of the innermost frames outside all libraries."""
        found: list[str] = []
        while frame is not None and len(found) < limit:
            name = frame.f_code.co_filename
            if self.is_users(name):
                found.append(self.place(name, frame.f_lineno))
            frame = frame.f_back
        return found


def _installed_package(script: str) -> str:
    """Where the installed package lies that is run: by ``python -m``, or by its console script.

    Returns:
        Its folder, or its file where it is a single one; empty where what is run is the user's own.
    """
    path = script if _PACKAGES.search(script) else _wrapped(script)
    found = _PACKAGES.search(path)
    if found is None or found["name"] in _FRAMEWORKS:
        return ""
    return path[: found.end()]


def _wrapped(script: str) -> str:
    """File of the package that a console script calls, as installers write them; empty for any other."""
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
    """Whether code of this file is a part of this package."""
    return name.startswith(_OWN)


def is_user_file(name: str) -> bool:
    """Whether code of this file belongs to the user: no library, nothing of ours, no generated code."""
    if name.startswith("<") or "site-packages" in name or "dist-packages" in name:
        return False
    return not name.startswith((_OWN, _LIBRARY))


def caller(depth: int) -> FrameType | None:
    """The frame so many levels above the caller, None where the stack is shorter."""
    try:
        return sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return None
