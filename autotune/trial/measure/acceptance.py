"""Acceptance of a config: every requested knob is read back in the first steps, and watched after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.protocol.events import ReadBack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.model.facts import RunFacts
    from autotune.model.measurement import Reading
    from autotune.trial.actuators.withdrawal import Withdrawal
    from autotune.trial.measure.process_end import ProcessEnd
    from autotune.trial.runtime.channel import Channel
    from autotune.trial.runtime.state import RuntimeState

_SETTLE_STEPS = 3
_REJECT_STEPS = 6


class Acceptance:
    """Decides whether the requested knobs are in effect.

    Args:
        state: Shared counters.
        channel: The event channel; None in a process that is not measured.
        ending: Ends the process.
        readings: Returns the status of every knob now.
        facts: Returns the facts of the run; called outside timed windows only.
        settled: Called when detection has settled, and each time the knobs are accepted or rejected.
        settle_root: Ends the detection of roots.
        restart: Starts the warm-up again.
    """

    def __init__(
        self,
        state: RuntimeState,
        channel: Channel | None,
        ending: ProcessEnd,
        *,
        readings: Callable[[], tuple[Reading, ...]],
        facts: Callable[[], RunFacts],
        settled: Callable[[tuple[Reading, ...], bool], None],
        settle_root: Callable[[int], bool],
        restart: Callable[[], None],
    ) -> None:
        self._state = state
        self._channel = channel
        self._ending = ending
        self._readings = readings
        self._facts = facts
        self._on_settled = settled
        self._settle_root = settle_root
        self._restart = restart
        self.hows: dict[str, str] = {}
        """Knob -> delivery of its change, for the record of a rejection."""
        self.patched: set[str] = set()
        """Knobs applied in this process, not by an option or the environment."""
        self.withdrawal: Withdrawal | None = None
        """Under `apply`: undoes knobs that the run contradicts."""
        self.accepted = False
        self._was_accepted = False
        self._settled = False
        self._latest: tuple[Reading, ...] = ()

    def on_applied(self) -> None:
        """Handle the first reading of every requested knob as applied; can be replaced."""

    def settle(self) -> bool:
        """Return whether detection has settled and no requested knob is known to have failed."""
        steps = self._state.steps
        if not self._settle_root(steps) or steps < _SETTLE_STEPS:
            return False
        if not self._settled:
            self._settled = True
            self._on_settled((), False)
            if self._channel is not None:
                self._channel.send(ReadBack(facts=self._facts()))
            self._restart()
        if self.accepted:
            return True
        self._latest = readings = self._readings()
        late = steps >= _REJECT_STEPS
        unfit = self._unapplied(readings)
        if not unfit:
            self.accepted = True
        elif late and any(r.status == "refused" for r in unfit):
            self.reject(readings)
        elif late and (self._channel is not None or steps >= 4 * _REJECT_STEPS):
            self.accepted = True
            if self._channel is None:
                self.reject(readings)
        if self.accepted:
            if not self._was_accepted and not unfit:
                self.on_applied()
            self._was_accepted = True
            self._on_settled(readings, True)
        return self.accepted

    def reject(self, readings: Sequence[Reading]) -> None:
        """End the process because a requested knob is not in effect; withdraw it if it once was."""
        unfit = self._unapplied(readings)
        if self._channel is None and self._was_accepted:
            # A later model or optimizer: the training so far is not discarded.
            for reading in unfit:
                self._withdraw(reading.knob, reading.reason)
            return
        self._on_settled(tuple(readings), True)
        bad = unfit[0]
        if self._channel is None:
            self._ending.untuned(bad.knob, f"{bad.knob}={bad.wanted} was not applied: {bad.reason}")
        self._end_rejected(bad.knob, bad.reason, tuple(readings))

    def lost(self, knob: str, reason: str) -> None:
        """End the trial because an accepted knob is no longer applied; under `apply`, withdraw it."""
        if not self.accepted or knob not in self.hows:
            return  # what was not accepted yet is judged by its reading
        if self._channel is None and self.withdrawal is None:
            # In a distributed trial, on a rank that does not measure: the trial ends with it.
            self._ending.untuned(knob, reason)
        if self._channel is None:
            self._withdraw(knob, reason)
        else:
            self._end_rejected(knob, reason, self._ending.safe_readings())

    def fault(self, hook: str) -> None:
        """End a run under `apply` after a hook failure, rather than continue partly tuned."""
        if self._channel is not None or not self.patched:
            return
        if hook in ("torch", "boundary") and not self.accepted:
            knob = next(iter(sorted(self.patched)))
            self._ending.untuned(
                knob, f"{knob} was not applied: observing the script failed at {hook}; see faults.log."
            )
        if self.accepted:
            for bad in self._unfit(self._readings()):
                self._withdraw(bad.knob, bad.reason)

    def unapplied(self) -> str | None:
        """Return why requested changes were not applied under `apply`; None if they were."""
        if self.accepted or not self.patched:
            return None
        seen = {r.knob for r in self._latest if r.status == "applied"}
        bad = next((r for r in self._unfit(self._readings()) if r.knob not in seen), None)
        return None if bad is None else f"{bad.knob}={bad.wanted} was not applied: {bad.reason}"

    def _end_rejected(self, knob: str, reason: str, readings: tuple[Reading, ...]) -> None:
        how = self.hows.get(knob, "")
        self._ending.broke(kind="config_rejected", message=reason, knob=knob, how=how, readings=readings)

    def _unapplied(self, readings: Sequence[Reading]) -> list[Reading]:
        gone = self.withdrawal.gone if self.withdrawal is not None else ()
        return [r for r in readings if r.wanted is not None and r.status != "applied" and r.knob not in gone]

    def _unfit(self, readings: Sequence[Reading]) -> list[Reading]:
        return [r for r in self._unapplied(readings) if r.knob in self.patched]

    def _withdraw(self, knob: str, reason: str) -> None:
        if self.withdrawal is not None:
            self.withdrawal.withdraw(knob, reason)
