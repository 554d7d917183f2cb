"""Session: the state machine of a search. Every driver is a loop around `ask` and `tell`."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from autotune.answer.ceilings import ceilings
from autotune.answer.communication import communication_ratio, is_dropped
from autotune.answer.space_selection import settled
from autotune.clock import SystemClock
from autotune.compare.transfer import beliefs
from autotune.driver.loop.fork_trust import ForkTrust
from autotune.driver.loop.planner import clipped, dead_ways, measured_changes
from autotune.driver.loop.repeat_policy import RepeatPolicy, ended_by_job_signal, marked
from autotune.driver.spec import JOB_END, MIN_BUDGET_S
from autotune.errors import BackendError, DiskFull
from autotune.knobs.registry import knobs_for
from autotune.launch.deadline import whole_deadline_s
from autotune.launch.runner import NOT_BEGUN, REMEDY, TrialResult, cold_start_note, is_of_cold_starts
from autotune.loss.effective_batch_check import unlike_step
from autotune.model.change import Env
from autotune.model.machine_load import news, warning
from autotune.model.study import SCRIPT_CHANGED
from autotune.model.trial import (
    NO_COMMUNICATION,
    Assignment,
    Failure,
    FailureKind,
    Measurement,
    Stage,
    StartMode,
    StartPolicy,
    Trial,
    TrialState,
)
from autotune.model.wire import to_wire
from autotune.search.costs import Costs
from autotune.search.forecast import forecast
from autotune.search.fork_eligibility import refusal, wants_forks
from autotune.space.build_space import not_here
from autotune.store.outbox import rows_for
from autotune.text.encodable import writable
from autotune.text.redact import redact, redact_args, secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.clock import Clock
    from autotune.driver.loop.planner import Planner
    from autotune.launch.devices.claims import Claim
    from autotune.launch.devices.load_check import LoadCheck
    from autotune.launch.devices.machine_lock import MachineLock
    from autotune.model.machine_load import MachineLoad
    from autotune.model.study import Study
    from autotune.model.trial import Outcome
    from autotune.report.listener import Listener
    from autotune.search.strategy import Strategy
    from autotune.store.journal import Journal

log = logging.getLogger(__name__)

T = TypeVar("T")

ENDING_S = 3.0
"""Time reserved for the answer, best.yaml and the last events.

0.1 s with the inline loop; 1.2 to 1.6 s more for Ray Tune's loop to end. Ray ends after the answer is
written.
"""

KILL_S = 3.0
"""Time from a trial's deadline to its end: set-up before its clock, 1 s for stack dumps, TERM, cleanup.

A trial that ignores TERM has 5 s more; the watchdog writes the answer meanwhile.
"""

SHORTEST_TRIAL_S = 4.0
"""Least duration of a process that imports PyTorch, trains and ends; no trial gets less."""

QUIET_POLL_S = 2.0
"""Interval between checks while waiting for a quiet machine, or for another search to end."""

NOTICE_S = 1.0
"""Time by which a signal to a whole job may end the trial before the driver handles its own."""

MAKE_ROOM = "make room, then: autotune resume"


class Session:
    """Asks the strategy, journals each event before it is visible, updates the study, repeats lost trials.

    Thread-safe: a driver may call `tell` and `ask` from different threads. To resume, build a Session from
    the refolded study; open trials are run again.

    Args:
        journal: Open for writing; the session is its only writer.
        study: Folded from the journal.
        strategy: Chooses the next trials.
        planner: Turns trials into assignments and facts into a space.
        clock: For durations; never the wall clock.
        elapsed_s: Budget spent before this object was created (earlier lives, start-up).
        ending_s: Time reserved at the end of the budget for writing the answer.
        listeners: Notified after the journal.
        watch: Returns why further trials are not comparable with earlier ones, as a sentence; empty while
            they are. Called before a trial is planned and before its outcome counts.
        load: Checks the load of the machine that trials run on; None for another machine.
        machine: Locks other searches out of that machine; None likewise.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        study: Study,
        strategy: Strategy,
        planner: Planner,
        clock: Clock,
        elapsed_s: float = 0.0,
        ending_s: float = ENDING_S,
        listeners: Sequence[Listener] = (),
        watch: Callable[[], str] = str,
        load: LoadCheck | None = None,
        machine: MachineLock | None = None,
    ) -> None:
        self._journal = journal
        self._study = study
        self._strategy = strategy
        self._planner = planner
        self._clock = clock
        self._began_s = clock.now_s() - elapsed_s
        self._ending_s = ending_s
        self._listeners = listeners
        self._watch = watch
        self._load = load
        self._machine = machine
        self._culprits: set[tuple[str, str]] = set()
        """Causes of load that were reported in this life."""
        self._has_waited = False
        self._lock = threading.RLock()
        self._running: dict[str, Assignment] = {}
        self._waiting: list[Trial] = list(study.open_trials)
        self._noted_kinds: set[str] = set()
        self._noted_beliefs = set(beliefs(study).notes)
        self._stopping = ""
        self._forks = ForkTrust()
        self._repeats = RepeatPolicy(self._forks, self._is_busy)

    # -- reading ------------------------------------------------------------------------------

    @property
    def study(self) -> Study:
        """The study so far; never waits for a lock."""
        return replace(self._study, elapsed_s=self.elapsed_s)

    def settled_study(self) -> Study:
        """Study with its whole journal; waits for a call in progress."""
        with self._lock:
            return self.study

    @property
    def elapsed_s(self) -> float:
        """Budget spent, earlier lives included."""
        return self._clock.now_s() - self._began_s

    @property
    def remaining_s(self) -> float:
        """Budget left for trials, without the reserve for the ending."""
        return self._study.spec.budget.seconds - self.elapsed_s - self._ending_s

    @property
    def stopping(self) -> str:
        """Reason why no further trial is started; empty while the search runs."""
        return self._stopping

    @property
    def is_over(self) -> bool:
        """Whether no trial runs and none will be started."""
        with self._lock:
            if self._running:
                return False
            if self._stopping or self.remaining_s < SHORTEST_TRIAL_S + KILL_S:
                return True
            return not self._waiting and self._strategy.is_finished(self._study, self.remaining_s - KILL_S)

    # -- the loop's calls ---------------------------------------------------------------------

    def await_machine(self) -> None:
        """Wait for other searches on this machine, then for a quiet machine; a second call does nothing.

        Raises:
            BackendError: Another search still uses the machine, and sharing is not allowed.
        """
        if self._has_waited:
            return
        self._has_waited = True
        # In a job with a fixed end, the wait comes out of the budget.
        counts = JOB_END in os.environ
        self._await_turn(counts=counts)
        self._await_quiet(within_s=self._study.spec.wait_for_quiet_s, counts=counts)

    def ask(self) -> Assignment | None:
        """Return the next process to run, journaled; None if there is none (now, or at all)."""
        self.await_machine()
        with self._lock:
            while not self._stopping and not self._is_another_script():
                known = self._study.because
                trial = self._next_trial()
                if trial is None:
                    return None
                if (planned := self._plan(self._with_checked_load(trial), known)) is not None:
                    return planned
            return None

    def ask_reference(self, node: str) -> Assignment | None:
        """Return a run of the unchanged script that shows the speed of a further machine, journaled.

        Args:
            node: The machine, for the reason shown to users.

        Returns:
            None while the script has no measurement, and where no time is left for the run.
        """
        with self._lock:
            own = next((t for t in self._study.baseline if t.measurement), None)
            left_s = self.remaining_s - KILL_S
            if own is None or self._stopping or Costs.of(self._study).next_run(own.config) > left_s:
                return None
            reason = f"Your unchanged script on {node}, before other trials run there."
            fidelity = replace(own.fidelity, loss_samples=0, probe="")
            trial = Trial(
                number=self._next_number(),
                config=own.config,
                stage=Stage.REFERENCE,
                fidelity=fidelity,
                reason=reason,
            )
            return self._plan(clipped(trial, left_s), self._study.because)

    def _plan(self, trial: Trial, known: str) -> Assignment | None:
        """Return the process of a trial, journaled; None if it is refused, which ends the trial.

        Args:
            trial: The next trial.
            known: Journaled reason of the end of screening.
        """
        planned = self._with_start_mode(trial, self._planner.assign(self._study, trial))
        uid = planned.uid if isinstance(planned, Assignment) else f"t{trial.number:04d}-refused"
        trial = replace(trial, changes=planned.launch.changes if isinstance(planned, Assignment) else None)
        because = self._study.because
        self._append(
            "proposed",
            f"{trial.number}/{trial.attempt}",
            {"trial": trial, "uid": uid, "elapsed_s": self.elapsed_s}
            | ({"because": because} if because != known else {}),
        )
        self._study = self._study.with_trial(trial)
        if isinstance(planned, Failure):
            self._close(trial, TrialResult(trial=trial.number, outcome=planned, seconds=0.0))
            return None
        spare_s = self.remaining_s - KILL_S - whole_deadline_s(planned)
        planned = replace(planned, patience_s=max(0.0, spare_s))
        self._running[uid] = planned
        return planned

    def start(self, assignment: Assignment, *, node: str = "") -> None:
        """Record that the process is about to be started, and on which machine of a cluster."""
        with self._lock:
            trial = self._trial(assignment.trial)
            data = {
                "number": trial.number,
                "attempt": trial.attempt,
                "uid": assignment.uid,
                "host": platform.node(),
                "pid": os.getpid(),
                "elapsed_s": self.elapsed_s,
            } | ({"node": node} if node else {})
            self._append("started", f"{trial.number}/{trial.attempt}", data)
            self._study = self._study.with_trial(replace(trial, state=TrialState.RUNNING, node=node))
            self._notify(lambda listener: listener.trial_started(self.study, trial))

    def tell(self, uid: str, ended: TrialResult) -> None:
        """Record the end of one trial of an assignment; idempotent, a late result is only logged.

        Raises:
            DiskFull: The trial could not be started. It stays open, and the search ends with its results so
                far.
            BackendError: The same if no process could be started, repeatedly.
        """
        if ended_by_job_signal(ended.outcome):
            self._await_own_signal()
        with self._lock:
            if uid not in self._running:
                self._append("late", f"{uid}/{self._clock.wall_s()}", {"uid": uid, "number": ended.trial})
                return
            command = _command_line(self._running.pop(uid))
            trial = self._trial(ended.trial)
            # Listeners and errors show its text, as the journal does.
            ended = replace(ended, outcome=_without_secrets(ended.outcome, self._study.spec.args))
            if isinstance(ended.outcome, Measurement):
                unlike = unlike_step(self._study, trial, ended.facts)
                ended = ended if unlike is None else replace(ended, outcome=unlike)
            # Diagnostic runs are not repeated: the answer does not need them.
            if _never_began(ended.outcome) and trial.stage.is_compared:
                self._stop_if_unrunnable(trial, ended.outcome)
            # A trial that ran meanwhile may have used either version.
            changed = self._is_another_script()
            reason = changed or self._repeats.reason(
                self._study, trial, ended, stopping=self._stopping, remaining_s=self.remaining_s
            )
            if reason:
                self._forks.note_repeat(trial, ended)
                self._requeue(trial, reason, has_ended=True)
                return
            self._forks.note_end(trial, ended)
            knob = self._ineffective_flag(trial, ended)
            self._close(trial, marked(self._study, ended), command=command)
            self._note_once(self._notes_to_report(ended.notes))
            if knob:
                self._retry_delivery(trial, knob)

    def lost(self, uid: str, message: str) -> None:
        """Record that the runner of this assignment died without a result."""
        with self._lock:
            assignment = self._running.get(uid)
            if assignment is None:
                return
            failure = Failure(kind=FailureKind.INFRA_LOST, message=message)
            self.tell(uid, TrialResult(trial=assignment.trial, outcome=failure, seconds=0.0))

    # -- ending -------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Start no further trial. Safe in a signal handler's thread; the first reason counts."""
        self._stopping = self._stopping or why

    def close(self) -> Study:
        """Record how the search ended; open trials stay open and are run again on resume."""
        with self._lock:
            why = self._stopping or "finished"
            for uid in list(self._running):
                trial = self._trial(self._running.pop(uid).trial)
                self._requeue(trial, f"the search stopped: {why}")
            self._study = replace(self._study, stopped=why, elapsed_s=self.elapsed_s)
            ended = {"why": why, "elapsed_s": self.elapsed_s, "changed": self._study.changed}
            if self._study.because:
                ended["because"] = self._study.because
            self._append("stopped", str(self._journal.epoch), ended)
            return self._study

    def note(self, text: str) -> None:
        """Add a note to the journal and the screen."""
        text = writable(text)
        with self._lock:
            self._append("noted", str(self._clock.wall_s()), {"text": text})
        self._notify(lambda listener: listener.note(self.study, text))

    # -- inside -------------------------------------------------------------------------------

    def _with_checked_load(self, trial: Trial) -> Trial:
        """Return the next trial after a check of the load; a confirmation may wait for a quiet machine."""
        if self._load is None or self._running:
            return trial
        if (found := self._load.since_last()) is not None:
            self._name_culprits(self._with_searches(found))
        measured = [t for t in self._study.trials if t.state is TrialState.FINISHED and t.stage.is_compared]
        begins = trial.stage is Stage.CONFIRM and bool(measured) and not measured[-1].stage.is_paired
        if not begins or not self._study.spec.wait_for_quiet_s:
            return trial
        # The time for the pairs is not spent on waiting.
        left_s = self.remaining_s
        spare_s = left_s - Costs.of(self._study).reserve([trial.config], left_s)
        self._await_quiet(within_s=min(self._study.spec.wait_for_quiet_s, spare_s), counts=True)
        return clipped(trial, self.remaining_s - KILL_S)

    def _await_turn(self, *, counts: bool) -> None:
        """Wait for earlier searches on the same CPUs or accelerators; report each once.

        Args:
            counts: The time comes out of the budget.
        """
        machine, spec = self._machine, self._study.spec
        if machine is None:
            return
        named: set[tuple[str, int]] = set()
        hint = "" if spec.share or spec.wait_s is not None else "; --share measures beside it"
        within_s = spec.longest_wait_s
        if counts:
            within_s = min(within_s, max(0.0, self.remaining_s - MIN_BUDGET_S))

        def first() -> Claim | None:
            found = machine.ahead()
            if found is not None and found.key not in named and within_s > 0.0:
                named.add(found.key)
                self.note(f"waiting up to {within_s:.0f} s: {found.text}{hint}")
            return found

        ahead = first()
        if ahead is not None and within_s > 0.0:
            ahead, waited_s = self._poll(ahead, first, within_s=within_s, counts=counts)
            if ahead is None:
                self.note(f"the other search has ended after {waited_s:.0f} s")
        if ahead is not None and not spec.share and not self._stopping:
            raise BackendError(
                f"{ahead.text}, after a wait of {within_s:.0f} s",
                hint="wait longer with --wait 2h, or measure beside it with --share",
            )
        machine.begin()

    def _poll(
        self, found: T | None, blocker: Callable[[], T | None], *, within_s: float, counts: bool
    ) -> tuple[T | None, float]:
        """Wait until the blocker has ended, and journal the wait.

        Args:
            found: The present blocker.
            blocker: Returns the blocker, or None.
            within_s: Longest wait.
            counts: The time comes out of the budget.

        Returns:
            The remaining blocker, and the seconds waited.
        """
        began_s = at_s = self._clock.now_s()
        while found is not None and not self._stopping and at_s - began_s < within_s:
            self._clock.sleep(min(QUIET_POLL_S, within_s - (at_s - began_s)))
            found = blocker()
            at_s, before_s = self._clock.now_s(), at_s
            # Updated at once: the end of the budget is monitored in another thread.
            self._began_s += 0.0 if counts else at_s - before_s
        waited_s = self._clock.now_s() - began_s
        data = {"seconds": waited_s, "quiet": found is None, "elapsed_s": self.elapsed_s}
        self._append("waited", f"{self._journal.epoch}/{self._clock.wall_s()}", data)
        self._study = replace(self._study, waited_s=self._study.waited_s + waited_s)
        return found, waited_s

    def _is_busy(self) -> bool:
        """Return whether other processes use the machine now; False while a trial runs, or if unknown."""
        check = None if self._running else self._load
        return check is not None and self._with_searches(check.now()).is_busy

    def _with_searches(self, load: MachineLoad) -> MachineLoad:
        """Return the load including other searches on the same CPUs or accelerators."""
        found = () if self._machine is None else self._machine.beside()
        return replace(load, culprits=(*found, *load.culprits)) if found else load

    def _await_quiet(self, *, within_s: float, counts: bool) -> None:
        """Check the load and report busy processes; wait for them to end, if requested.

        Args:
            within_s: Longest wait.
            counts: The time comes out of the budget.
        """
        if (check := self._load) is None:
            return

        def load_if_busy() -> MachineLoad | None:
            found = self._with_searches(check.now())
            return found if found.is_busy else None

        load = load_if_busy()
        if load is None:
            return
        self._name_culprits(load)
        if within_s <= 0:
            return
        self.note(f"waiting up to {within_s:.0f} s for a quiet machine")
        load, waited_s = self._poll(load, load_if_busy, within_s=within_s, counts=counts)
        after = "the machine is quiet" if load is None else "still busy, the search continues"
        self.note(f"{after} after {waited_s:.0f} s")

    def _name_culprits(self, load: MachineLoad) -> None:
        """Report each cause of load once, in the journal and so in the report."""
        if not (found := news(load, self._culprits)):
            return
        data = {"load": load, "elapsed_s": self.elapsed_s}
        self._append("busy", f"{self._journal.epoch}/{self._clock.wall_s()}", data)
        self._study = replace(self._study, busy=(*self._study.busy, load))
        advises = not (self._study.spec.wait_for_quiet_s or self._study.spec.share)
        for sentence in found:
            text = writable(warning(sentence, advises=advises))
            self._notify(partial(_note, study=self.study, text=text))

    def _with_start_mode(self, trial: Trial, planned: Assignment | Failure) -> Assignment | Failure:
        """Use a cold start if forks are not trusted. Note the reason once if the user requested forks."""
        if not wants_forks(self._study, trial) or isinstance(planned, Failure):
            return planned
        if lost := self._forks.lost_because:
            self._note_once([cold_start_note(lost)])
        elif reason := refusal(self._study):
            self._note_once(self._notes_to_report([cold_start_note(reason)]))
        return replace(planned, start=StartMode.COLD) if lost else planned

    def _stop_if_unrunnable(self, trial: Trial, failure: Failure) -> None:
        """End the search if every further trial would fail alike; a resume decides about this one."""
        if self._study.spec.ray_address:
            return  # one node of a cluster, while others may have capacity
        if failure.kind is FailureKind.DISK:
            self.stop("disk")
            self._requeue(trial, failure.message)
            raise DiskFull(failure.message, hint=MAKE_ROOM)
        if "device" in failure.evidence and self._has_others(trial):
            return
        has_worked = any(t.measurement for t in self._study.baseline)
        if has_worked and failure.kind is FailureKind.INFRA_LOST and trial.attempt > failure.kind.repeats:
            self.stop("backend")
            self._requeue(trial, failure.message)
            remedy = str(failure.evidence.get(REMEDY, "mend that"))
            raise BackendError(failure.message, hint=f"{remedy}; then: autotune resume")

    def _has_others(self, trial: Trial) -> bool:
        """Return whether other devices than the trial's are usable; pairs always use the same one."""
        facts = self._study.facts
        at_once = self._study.spec.driver == "ray" and facts is not None and len(facts.host.devices) > 1
        return at_once and not trial.stage.is_paired

    def _note_once(self, notes: Sequence[str]) -> None:
        """Journal notes of trials once each, as all trials of a script have the same ones."""
        for text in notes:
            kind = text.partition("(")[0].partition(":")[0]
            if kind not in self._noted_kinds:
                self._noted_kinds.add(kind)
                self.note(redact(text, free=True))

    def _notes_to_report(self, notes: Sequence[str]) -> list[str]:
        """Return the notes to report, without those about forks unless the user requested forks."""
        requested = self._study.spec.start is StartPolicy.FORK
        return [note for note in notes if requested or not is_of_cold_starts(note)]

    def _next_trial(self) -> Trial | None:
        left = self.remaining_s
        if left < SHORTEST_TRIAL_S + KILL_S:
            return None
        if self._waiting:
            again = self._waiting.pop(0)
            if again.stage.is_paired and Costs.of(self._study).next_run(again.config) > left - KILL_S:
                # If shortened it would count as a failure of its config; if left open, a resume runs it.
                self.stop("finished")
                return None
            return clipped(replace(again, state=TrialState.WAITING), left - KILL_S)
        proposal = self._strategy.ask(self._study, left - KILL_S)
        is_waiting = proposal is None and bool(self._study.open_trials)
        if not is_waiting and (proposal is None or proposal.stage is not Stage.DIAGNOSE):
            is_over = proposal is None or proposal.stage.is_paired
            # Without a winning finalist, screening continues and ends for another reason.
            because = self._study.because if is_over else ""
            if is_over and not because:
                because = self._strategy.ending(self._study, left - KILL_S)
            self._study = replace(self._study, because=because)
        if proposal is None:
            return None
        trial = Trial(
            number=self._next_number(),
            config=proposal.config,
            stage=proposal.stage,
            fidelity=proposal.fidelity,
            reason=proposal.reason,
            seed=proposal.seed,
            group=proposal.group,
        )
        return clipped(trial, left - KILL_S)

    def _is_another_script(self) -> str:
        """Return the sentence of `watch`; the first one ends the search and is reported."""
        changed = redact(self._watch())
        if changed and self._stopping != SCRIPT_CHANGED:
            self.stop(SCRIPT_CHANGED)
            self._study = replace(self._study, changed=changed)
            self.note(changed)
        return changed

    def _next_number(self) -> int:
        """Return a number that no trial has, including planned ones."""
        return max((t.number for t in (*self._study.trials, *self._waiting)), default=-1) + 1

    def _trial(self, number: int) -> Trial:
        return next(t for t in self._study.trials if t.number == number)

    def _close(self, trial: Trial, ended: TrialResult, *, command: str = "") -> None:
        ended_trial = replace(
            trial,
            state=TrialState.FINISHED,
            outcome=ended.outcome,
            seconds=ended.seconds,
            finished_s=self.elapsed_s,
            start=ended.start,
        )
        wants_facts = self._study.facts is not None and self._study.facts.run is None
        facts = ended.facts if wants_facts and isinstance(ended.outcome, Measurement) else None
        data = {
            "number": trial.number,
            "attempt": trial.attempt,
            "outcome": ended.outcome,
            "seconds": ended.seconds,
            "elapsed_s": self.elapsed_s,
            "facts": facts,
            "start": ended.start,
        }
        self._append("finished", f"{trial.number}/{trial.attempt}", data, command=command)
        before = dead_ways(self._study)
        self._study = replace(self._study.with_trial(ended_trial), elapsed_s=self.elapsed_s)
        if facts is not None and self._study.facts is not None:
            self._study = replace(self._study, facts=replace(self._study.facts, run=facts))
        news = ""
        if facts is not None or dead_ways(self._study) != before:
            news = self._rebuild_space()
        self._judge_baseline(ended_trial)
        self._notify(lambda listener: listener.trial_ended(self.study, ended_trial))
        bound = self._ceiling_of_communication(ended_trial)
        for text in (news, *(self._forecast() if facts is not None else ()), bound):
            if text:
                self._notify(partial(_note, study=self.study, text=text))
        self._report_transfer()

    def _forecast(self) -> tuple[str, str]:
        """Return what the budget allows and the largest possible gain, right after the first run."""
        study = self._study
        if study.spec.purpose or study.spec.budget.trials is not None:
            return "", ""
        bounds = "; ".join(c.text for c in ceilings(study))
        return forecast(study, self.remaining_s - KILL_S), f"ceilings: {bounds}" if bounds else ""

    def _ceiling_of_communication(self, trial: Trial) -> str:
        """Return the result of the run without communication, right after it; empty for others."""
        if trial.fidelity.probe != NO_COMMUNICATION:
            return ""
        ratio = communication_ratio(self._study)
        if ratio is None:
            return "the run without an exchange of gradients showed no ceiling"
        dropped = "; its knobs are left out" if is_dropped(self._study) else ""
        return f"communication: at most {ratio:.2f}x{dropped}"

    def _report_transfer(self) -> None:
        """Report what was used from earlier studies, and what of it no longer holds.

        It follows from the journal, so nothing is written.
        """
        for text in beliefs(self._study).notes:
            if text not in self._noted_beliefs:
                self._noted_beliefs.add(text)
                self._notify(partial(_note, study=self.study, text=text))

    def _rebuild_space(self) -> str:
        """Build the space from the present facts; return news about its choice, for the user."""
        facts = self._study.facts
        if facts is None or facts.run is None:
            return ""
        spec = settled(self._study)
        is_news = spec.space is not self._study.spec.space
        space, refusals = self._planner.space(spec, facts, dead_ways(self._study))
        is_first = self._study.space is None or is_news
        self._study = replace(self._study, spec=spec, space=space, refusals=refusals)
        notes = [f"space {spec.space.name}: {spec.space.reason}"] if is_news else []
        if is_first and (left := not_here(spec.space, facts, knobs_for(spec.space), space)):
            notes.append(f"not applicable here: {', '.join(left)}")
        return "; ".join(notes)

    def _judge_baseline(self, trial: Trial) -> None:
        if trial.stage is not Stage.BASELINE or trial.failure is None:
            if (
                trial.stage is Stage.BASELINE
                and self._study.facts is not None
                and self._study.facts.run is None
            ):
                self.stop("no_baseline")
            return
        if not any(t.measurement for t in self._study.baseline):
            self.stop("disk" if trial.failure.kind is FailureKind.DISK else "no_baseline")

    def _ineffective_flag(self, trial: Trial, ended: TrialResult) -> str:
        """Return the knob whose script option had no effect although another delivery exists, or ""."""
        facts, failure = self._study.facts, ended.outcome
        if (
            facts is None
            or not isinstance(failure, Failure)
            or failure.kind is not FailureKind.CONFIG_REJECTED
        ):
            return ""
        knob, how = str(failure.evidence.get("knob", "")), str(failure.evidence.get("how", ""))
        if how != "flag" or self._stopping or not trial.stage.is_compared:
            return ""
        if measured_changes(self._study, trial.config) is not None:
            return ""  # the delivery would be the same
        known = dead_ways(self._study)
        this = (knob, how, trial.config[knob]) if knob in trial.config else (knob, how)
        _, refusals = self._planner.changes(trial.config, facts, known | {this})
        return "" if refusals else knob

    def _retry_delivery(self, trial: Trial, knob: str) -> None:
        number = self._next_number()
        reason = (
            f"{knob} repeated by another delivery: the script's option had no effect, or changed more "
            "than this knob"
        )
        self._waiting.append(replace(trial, number=number, attempt=1, reason=reason))

    def _await_own_signal(self) -> None:
        """Wait for the driver's own signal after a trial ended by one; on the machine's clock."""
        clock = SystemClock()
        until_s = clock.now_s() + NOTICE_S
        while not self._stopping and clock.now_s() < until_s:
            clock.sleep(0.05)

    def _requeue(self, trial: Trial, reason: str, *, has_ended: bool = False) -> None:
        # A trial that ended normally left nothing to clean up.
        more = {"ended": True} if has_ended else {}
        self._append(
            "requeued",
            f"{trial.number}/{trial.attempt}",
            {"number": trial.number, "attempt": trial.attempt, "reason": reason, **more},
        )
        again = replace(trial, attempt=trial.attempt + 1, state=TrialState.WAITING)
        self._study = self._study.with_trial(again)
        if not self._stopping:
            self._waiting.append(again)
        what = "does not count" if self._stopping else "again"
        self._notify(lambda listener: listener.note(self.study, f"trial {trial.number} {what}: {reason}"))

    def _append(self, kind: str, key: str, data: Mapping[str, object], **shown: str) -> None:
        wired: dict[str, object] = to_wire(data)
        rows = () if self._study.spec.purpose else rows_for(kind, wired, **shown)
        self._journal.append(kind, f"{kind}/{key}", wired, outbox=rows)

    def _notify(self, call: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                log.exception("a listener failed; the search continues")
            if listener.wants_stop:
                self.stop("interrupted")


def _note(listener: Listener, *, study: Study, text: str) -> None:
    listener.note(study, text)


def _never_began(outcome: Outcome) -> TypeGuard[Failure]:
    """Return whether no process was started, so that the config is not at fault."""
    return isinstance(outcome, Failure) and NOT_BEGUN in outcome.evidence


def _command_line(assignment: Assignment) -> str:
    """Return the command as a person would type it: changed variables, interpreter, script, arguments.

    Secrets are removed before quoting, which could hide them from patterns.
    """
    launch = assignment.launch
    variables = [
        f"{change.spelling.name}="
        + shlex.quote(redact(launch.env.get(change.spelling.name, change.delivered)))
        for change in launch.changes
        if isinstance(change.spelling, Env)
    ]
    return " ".join([*variables, shlex.join(redact_args(launch.command))])


def _without_secrets(outcome: Outcome, args: Sequence[str]) -> Outcome:
    """Return the outcome with secret arguments removed from a failure's output."""
    if not isinstance(outcome, Failure):
        return outcome
    known = secret_values(args)
    evidence = {
        key: writable(redact(value, known=known, free=True)) if isinstance(value, str) else value
        for key, value in outcome.evidence.items()
    }
    message = writable(redact(outcome.message, known=known, free=True))
    return replace(outcome, message=message, evidence=evidence)
