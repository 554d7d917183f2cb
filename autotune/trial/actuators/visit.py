"""One process measures many configs: what can be switched between two steps is switched, and taken back.

The parts of a visit are windows like any other (`autotune.trial.measure.recorder`); here is only what differs
between them. Nothing is switched before the process's own window is told, and a part that fails ends all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.model.measurement import Reading
from autotune.trial.actuators.readings import same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.knobs.base import Knob
    from autotune.model.config import Config, Value
    from autotune.model.live import Visit
    from autotune.model.trial import Fidelity
    from autotune.trial.actuators.patches import Patches
    from autotune.trial.runtime.state import State

_LONGEST = 2.0
"""Times the shortest window of a part."""


class Visiting:
    """Goes through the parts of a visit, one switch at a time.

    Args:
        visit: What is to be measured.
        own: The config that the process was started with.
        knobs: By name.
        patches: What they may touch.
        state: Holds the refusals of seams.
    """

    def __init__(
        self, visit: Visit, own: Config, knobs: Mapping[str, Knob], patches: Patches, state: State
    ) -> None:
        self._visit = visit
        self._own = own
        self._knobs = knobs
        self._patches = patches
        self._state = state
        self._parts = visit.parts()
        self._wanted: dict[str, Value] = {}
        self._backs: list[Callable[[], None]] = []
        self._end_ns = 0
        self._refusal = ""
        self.part = 0
        """Of those that were begun, from 1; 0 before the first."""

    def forward(self, now_ns: int) -> bool:
        """Take the last switch back and make the next one; False where the visit is over.

        Called at the end of a step. Nothing here raises.
        """
        self._end_ns = self._end_ns or now_ns + int(self._visit.limit_s * 1e9)
        if not self._take_back() or self.has_failed or self.part >= len(self._parts) or self.is_late(now_ns):
            return False
        config = self._parts[self.part]
        self.part += 1
        self._wanted = {k: v for k, v in (config or {}).items() if k not in self._own or self._own[k] != v}
        for name, value in self._wanted.items():
            try:
                self._backs.append(self._knobs[name].switch(value, self._patches))
            except Exception as error:
                self._refusal = f"{type(error).__name__}: {error}"
                break
        return True

    def is_late(self, now_ns: int) -> bool:
        """The time of the visit is over."""
        return now_ns > self._end_ns

    @property
    def has_failed(self) -> bool:
        """What was to be switched for this part is not what the process does."""
        return bool(self._refusal)

    def fidelity(self, own: Fidelity, *, evaluation_counts: bool) -> Fidelity:
        """How long a part is measured, and by the same rule for evaluations as the process's own window."""
        return replace(
            own,
            min_window_s=self._visit.window_s,
            max_window_s=_LONGEST * self._visit.window_s,
            loss_samples=0,
            evaluation_counts=evaluation_counts,
            dominated_below=0.0,
        )

    def readings(self) -> tuple[Reading, ...]:
        """What was switched for this part, as the process has it now; one that differs fails the part."""
        found = tuple(self._reading(name, value) for name, value in self._wanted.items())
        bad = next((r for r in found if r.status != "applied"), None)
        if bad is not None:
            self._refusal = self._refusal or bad.reason
        return found

    def _reading(self, name: str, value: Value) -> Reading:
        try:
            found = self._knobs[name].seen(self._patches)
        except Exception as error:
            found, self._refusal = None, self._refusal or f"{type(error).__name__}: {error}"
        if found is not None and same(found, value) and not self._refusal:
            return Reading(knob=name, wanted=value, found=found, status="applied")
        reason = self._refusal or self._state.refusals.get(name) or f"Asked for {value}, found {found}."
        return Reading(knob=name, wanted=value, found=found, status="refused", reason=reason)

    def _take_back(self) -> bool:
        """Whether the process is as it was before the last switch."""
        while self._backs:
            try:
                self._backs.pop()()
            except Exception as error:
                self._state.faults.note("visit", error)
                return False
        return True
