"""Contradictions between a real training under `apply` and the search: knobs that do not hold step aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.model.change import Flag
from autotune.trial.actuators import count_watch
from autotune.trial.hooks.data.worker_watch import WorkerWatch
from autotune.trial.records.objects import attribute_of

if TYPE_CHECKING:
    from autotune.protocol.plan import Plan
    from autotune.trial.actuators.withdrawal import Ending, Withdrawal
    from autotune.trial.hooks.data.loader import Loader
    from autotune.trial.hooks.step.optimizer import Optimizer
    from autotune.trial.runtime.state import RuntimeState
    from autotune.trial.runtime.undo import Undo


class ApplyWatch:
    """Installs what watches a real training.

    Args:
        plan: The requested changes, and the script's own values.
        state: Shared counters.
        undo: Restores what is replaced.
        withdrawal: Undoes knobs.
        end: Ends the process in its first steps.
    """

    def __init__(
        self, plan: Plan, state: RuntimeState, undo: Undo, withdrawal: Withdrawal, end: Ending
    ) -> None:
        self._plan = plan
        self._state = state
        self._undo = undo
        self._withdrawal = withdrawal
        self._end = end

    def workers(self, torch: Any, hook: Loader) -> None:
        """Track state that the script changes later, since workers added by a knob have a copy of it."""
        wanted = {change.knob: change for change in self._plan.changes}
        by_option = "num_workers" in wanted and isinstance(wanted["num_workers"].spelling, Flag)
        if {"num_workers", "persistent_workers"} & wanted.keys():

            def has_own(loader: Any) -> bool:
                record = attribute_of(loader, "_autotune_record")
                # The script's own option sets the number of workers.
                built = {} if record is None else record.own
                own = (self._plan.own if by_option else built).get("num_workers")
                return bool(own) and "num_workers" in wanted

            def withdraw(knob: str, reason: str) -> None:
                self._withdrawal.withdraw(knob if knob in wanted else "num_workers", reason)

            WorkerWatch(self._state, withdraw, has_own, hook.workers_refused).install(torch, self._undo)

    def counts(self, torch: Any, loader: Loader, optimizer: Optimizer) -> None:
        """Track step counts of the script that a batch size of loaders would not reach."""
        wanted = {change.knob: change for change in self._plan.changes}
        if count_watch.is_needed(wanted):
            watch = count_watch.CountWatch(
                wanted, self._plan.own, self._state, self._withdrawal.withdraw, self._end
            )
            watch.install(torch, self._undo, loader, optimizer)

    def loaders(self, loader: Loader) -> None:
        """Leave loaders of other sizes than those of the search unchanged."""
        batch = next((change for change in self._plan.changes if change.knob == "batch_size"), None)
        loader.searched = self._plan.own
        own = self._plan.own.get("batch_size")
        if batch is not None and isinstance(batch.spelling, Flag):
            own = batch.value
        overrides = loader.overrides
        overrides.watched = any(change.knob == "accumulation" for change in self._plan.changes)
        overrides.reference = own if isinstance(own, int) else None

        def other_size(size: int, searched: int, site: str) -> None:
            self._withdrawal.aside(
                ("batch_size",),
                f"is left out for a loader of {size} samples, built at {site}: the search used {searched}",
            )

        overrides.on_other_size = other_size

    def leave_out(self, what: str, batches: bool) -> None:
        """Leave knobs out of a part of the run that needs the script's own values.

        Args:
            what: The part, such as an export.
            batches: It needs the script's own batches as well.
        """
        names = ("precision", "compile_mode", "channels_last")
        reason = f"is left out of {what}, which needs the script's own batches"
        self._withdrawal.aside((*names, "batch_size") if batches else names, reason, is_exact=True)
