"""Under `apply`, batch sizes that do not reach the step counts of the script.

A file of an older search may change the batch of a loader by its keyword. A schedule's length that the script
computes from the constant of its batch size does not follow.
"""

# Loaders of the script are of any type; narrowing them yields partly unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

from autotune.model.change import Keyword, Patch
from autotune.source.loops import STEP_COUNTED
from autotune.trial.loop.schedules import Schedules
from autotune.trial.loop.training_loop import frames_here
from autotune.trial.records.objects import attribute_of, length_of
from autotune.trial.runtime.state import is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.records.loader_stats import LoaderStats
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo

_IN_PROCESS: Final = (Keyword, Patch)


def is_needed(changes: Mapping[str, Change]) -> bool:
    """Return whether a change alters the number of batches, or of steps, without the script's knowledge."""
    found = (changes.get("batch_size"), changes.get("accumulation"))
    return any(change is not None and isinstance(change.spelling, _IN_PROCESS) for change in found)


class CountWatch:
    """Withdraws a batch size that contradicts a step count of the script; refuses such an accumulation.

    Args:
        changes: Requested changes by knob.
        own: The script's own values in the search.
        state: Formats places, counts steps, and records faults.
        withdraw: Undoes a knob, with the reason as a sentence.
        refuse: Ends the process, for a schedule whose length is wrong already.
    """

    def __init__(
        self,
        changes: Mapping[str, Change],
        own: Mapping[str, Value],
        state: RuntimeState,
        withdraw: Callable[[str, str], None],
        refuse: Callable[[str, str], NoReturn],
    ) -> None:
        self._changes = changes
        self._own = own
        self._withdraw = withdraw
        self._refuse = refuse
        self._state = state
        self._schedules = Schedules(state.place)
        self._length: int | None = None
        """Batches of a pass over the training loader at the script's own batch size."""

    def install(self, torch: Any, undo: Undo, loader: Loader, optimizer: Optimizer) -> None:
        """Observe schedules, the start of passes, and steps of schedules."""
        self._schedules.install(torch, undo)
        self._schedules.on_schedule = self._compare

        def begins(record: LoaderStats) -> None:
            try:
                self._note_pass(torch, record)
            except Exception as error:
                self._state.faults.note("count_watch", error)

        def scheduled() -> None:
            self._compare(per_step=True, counted=STEP_COUNTED in optimizer.loop_hazards())

        loader.on_pass = begins
        optimizer.on_scheduled = scheduled

    def _note_pass(self, torch: Any, record: LoaderStats) -> None:
        loader, size = record.loader(), record.own.get("batch_size")
        if not record.is_other and loader is not None and not self._state.steps:
            self._refuse_following(length_of(loader, 0))
        if record.is_other or loader is None or type(size) is not int or size < 1:
            return
        if attribute_of(loader.batch_sampler, "batch_size") == size:
            return
        # With a batch sampler of the script, the loader's own attributes are defaults.
        batches = length_of(attribute_of(loader.batch_sampler, "sampler"), 0) / size
        drops = attribute_of(loader.batch_sampler, "drop_last")
        self._length = math.floor(batches) if drops else math.ceil(batches)
        frames = [frame for frame in frames_here(torch) if is_user_file(frame.f_code.co_filename)]
        self._schedules.note_passes(frames)
        self._compare()

    def _compare(self, *, per_step: bool = False, counted: bool = True) -> None:
        batch, parts = self._by_us("batch_size"), self._by_us("accumulation")
        self._refuse_following()
        if not batch:
            return
        keeps = batch * (parts or 1) == self._own.get("batch_size")
        fixed = self._schedules.fixed(self._length, per_step=per_step, counted=counted, passes_only=keeps)
        if fixed:
            self._withdraw(
                "batch_size",
                f"The script counts {fixed} by a constant, which another batch of the loader does not reach.",
            )

    def _refuse_following(self, length: int = 0) -> None:
        """End the process if the length of a schedule is counted in batches that become parts of steps.

        Args:
            length: Batches of a pass over the training loader; 0 if unknown.
        """
        parts = self._by_us("accumulation")
        if parts and (following := self._schedules.following(length)):
            self._refuse(
                "accumulation",
                f"accumulation={parts} cannot be applied: {following} is counted by the loader's batches, "
                "which become parts of steps",
            )

    def _by_us(self, knob: str) -> int:
        """Return the value of a knob that is changed inside the process; 0 if the script itself sets it."""
        change = self._changes.get(knob)
        if change is None or not isinstance(change.spelling, _IN_PROCESS):
            return 0
        return change.value if type(change.value) is int else 0
