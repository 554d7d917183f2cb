"""Recorder of a process: reads back its knobs and, in a measured process, records its window.

It never raises into the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.trial.measure.acceptance import Acceptance
from autotune.trial.measure.measured_run import MeasuredRun
from autotune.trial.measure.process_end import ProcessEnd
from autotune.trial.measure.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.model.facts import RunFacts
    from autotune.model.measurement import Reading
    from autotune.model.trial import Segment
    from autotune.trial.measure.rank_recorder import RankRecorder
    from autotune.trial.runtime.channel import Channel, Row
    from autotune.trial.runtime.memory import DeviceMemory
    from autotune.trial.runtime.state import RuntimeState


class Recorder:
    """Receives the steps of one process.

    Args:
        state: Shared counters.
        channel: The event channel; None under `apply`.
        segment: Segment to measure; None under `apply`.
        memory: Allocator figures.
        readings: Returns the status of every knob now.
        facts: Returns the facts of the run; called outside timed windows only.
        settled: Called when detection has settled, and each time the knobs are accepted or rejected.
        settle_root: Ends the detection of roots.
    """

    def __init__(
        self,
        state: RuntimeState,
        channel: Channel | None,
        segment: Segment | None,
        memory: DeviceMemory,
        *,
        readings: Callable[[], tuple[Reading, ...]],
        facts: Callable[[], RunFacts],
        settled: Callable[[tuple[Reading, ...], bool], None],
        settle_root: Callable[[int], bool],
    ) -> None:
        self._state = state
        self._channel = channel
        self.sources = Sources()
        self.ending = ProcessEnd(state, channel, memory, readings=readings, phase=lambda: self.phase)
        self.acceptance = Acceptance(
            state,
            channel,
            self.ending,
            readings=readings,
            facts=facts,
            settled=settled,
            settle_root=settle_root,
            restart=self.restart,
        )
        self.rank: RankRecorder | None = None
        """Logs every step of this rank in a distributed training."""
        self.run: MeasuredRun | None = None
        if channel is not None and segment is not None:
            self.run = MeasuredRun(
                state,
                channel,
                segment,
                memory,
                acceptance=self.acceptance,
                ending=self.ending,
                sources=self.sources,
                readings=readings,
                facts=facts,
            )

    @property
    def measures(self) -> bool:
        """False under `apply`, which records nothing."""
        return self._channel is not None

    @property
    def on_host(self) -> bool:
        """Whether steps are timed by the host's clock only, as far as known."""
        return self.run is None or self.run.steps.clock is None

    @property
    def phase(self) -> str:
        """Return ``import``, ``setup``, ``warmup`` or ``window``."""
        if self.run is not None and self.run.steps.begin_ns:
            return "window"
        if self._state.steps:
            return "warmup"
        return "setup" if self.sources.loader is not None else "import"

    def restart(self, *, forgets: bool = False) -> None:
        """Warm up again after a change that the window must not contain.

        Args:
            forgets: Drop the steps so far, which differ from those to be timed.
        """
        if self.run is not None:
            self.run.restart(forgets=forgets)

    def reopen(self) -> None:
        """Read the knobs again for a new model, and measure again."""
        self._state.calm.leave()
        self.acceptance.accepted = False
        if self.run is not None:
            self.run.reopen()

    def step(self, row: Row, loss: Any, batches: int) -> None:
        """Record the end of a step."""
        if self.rank is not None:
            self.rank.step(row, loss)
        if self.run is not None:
            self.run.step(row, loss, batches)
        elif not self.acceptance.accepted:
            self.acceptance.settle()

    def calm_until_ns(self, now: int) -> int:
        """Return when an open window is evaluated next; 0 if each step may require a decision."""
        return 0 if self.run is None or self.rank is not None else self.run.calm_until_ns(now)

    def calm_steps(self, rows: Sequence[Row], losses: Sequence[float], samples_total: int) -> None:
        """Record steps inside an open window, between two evaluations; see `MeasuredRun.calm_steps`."""
        if self.run is not None:
            self.run.calm_steps(rows, losses, samples_total)

    def script_ended(self, code: int, why: str) -> None:
        """Report the script's end in a measured process, and end the process; else do nothing."""
        if self._channel is None:
            return
        self._state.calm.leave()
        if self.run is not None:
            self.run.script_ended(code, why)
        self.ending.done(why, code)
