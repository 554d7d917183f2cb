"""Reduction of a journal's events to a study. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from autotune.answer.space_selection import settled
from autotune.errors import JournalDamaged
from autotune.model.facts import Facts, RunFacts
from autotune.model.history_record import Transfer
from autotune.model.machine_load import MachineLoad
from autotune.model.measurement import Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study, StudySpec
from autotune.model.trial import Failure, Outcome, Stage, StartMode, Trial, TrialState
from autotune.model.wire import from_wire, today

if TYPE_CHECKING:
    from autotune.store.journal import Entry

Build = Callable[[StudySpec, Facts], tuple[SearchSpace, dict[str, str]]]


def fold(entries: Iterable[Entry], *, build: Build | None = None) -> Study:
    """Return the study after these events; any prefix of a journal that includes its first event is valid.

    Trials without an outcome stay WAITING or RUNNING; the driver of the study decides about them. Outcomes
    are final: a second one for the same trial, and one for an attempt that was given up, change nothing.
    Unknown kinds of event are ignored, so that a journal of a newer version can still be shown.

    Args:
        entries: In the order of writing.
        build: Builds the search space from the spec and the facts. Called once, as soon as the
            baseline's own facts exist; None leaves the space unbuilt.

    Raises:
        JournalDamaged: The first event is missing, or an event's contents do not match its kind.
    """
    state = _State()
    for entry in entries:
        handler = _HANDLERS.get(entry.kind)
        if handler is None:
            continue
        try:
            handler(state, entry.data)
        except _INVALID as error:
            message = f"event {entry.seq} ({entry.uid}) does not hold a valid {entry.kind!r}: {error!r}"
            raise JournalDamaged(message, hint=_HINT) from error
    return state.study(build)


_HINT = "It may be from another version of autotune; `autotune show` with that version reads it."


_INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of invalid values in an event: a journal may be damaged, or another user's."""
_YEAR_10000_S = 253_402_300_800.0


class _State:
    """State accumulated so far."""

    def __init__(self) -> None:
        self.spec: StudySpec | None = None
        self.facts: Facts | None = None
        self.run: RunFacts | None = None
        self.trials: dict[int, Trial] = {}
        self.elapsed_s = 0.0
        self.stopped = ""
        self.changed = ""
        self.because = ""
        self.cut: set[tuple[Stage, int]] = set()
        self.created = 0.0
        self.transfer: Transfer | None = None
        self.busy: list[MachineLoad] = []
        self.waited_s = 0.0

    def study(self, build: Build | None) -> Study:
        if self.spec is None:
            message = "the journal holds no `opened` event"
            raise JournalDamaged(message, hint="The search ended before it began; start it again.")
        facts = None if self.facts is None else replace(self.facts, run=self.run)
        study = Study(
            spec=self.spec,
            facts=facts,
            trials=tuple(self.trials[number] for number in sorted(self.trials)),
            elapsed_s=self.elapsed_s,
            stopped=self.stopped,
            created=self.created,
            changed=self.changed,
            cut=frozenset(self.cut),
            because=self.because,
            transfer=self.transfer,
            busy=tuple(self.busy),
            waited_s=self.waited_s,
        )
        study = replace(study, spec=settled(study))
        if build is None or facts is None or facts.run is None:
            return study
        space, refusals = build(study.spec, facts)
        return replace(study, space=space, refusals=refusals)

    def attempt(self, data: Mapping[str, Any]) -> Trial | None:
        """Return the trial of this event, if the event may change it."""
        trial = self.trials.get(int(data["number"]))
        if trial is None or trial.state is TrialState.FINISHED or int(data["attempt"]) < trial.attempt:
            return None
        return trial


def _opened(state: _State, data: Mapping[str, Any]) -> None:
    # A later life may have another budget; its own spec applies from then on.
    if state.spec is None:
        state.created = float(data["wall_s"])
        if not 0.0 <= state.created < _YEAR_10000_S:
            message = "its time is in no year of a calendar"
            raise ValueError(message)
    state.spec = from_wire(StudySpec, data["spec"])
    state.stopped = state.changed = ""
    if not any(trial.stage is Stage.CONFIRM for trial in state.trials.values()):
        state.because = ""  # with more time further trials are possible


def _inspected(state: _State, data: Mapping[str, Any]) -> None:
    state.facts = from_wire(Facts, data["facts"])
    state.run = state.run or state.facts.run


def _proposed(state: _State, data: Mapping[str, Any]) -> None:
    state.elapsed_s = max(state.elapsed_s, float(data.get("elapsed_s", 0.0)))
    state.because = str(data.get("because", state.because))
    trial = from_wire(Trial, data["trial"])
    known = state.trials.get(trial.number)
    if known is None or (known.state is not TrialState.FINISHED and trial.attempt >= known.attempt):
        state.trials[trial.number] = replace(trial, state=TrialState.WAITING, outcome=None)


def _started(state: _State, data: Mapping[str, Any]) -> None:
    state.elapsed_s = max(state.elapsed_s, float(data.get("elapsed_s", 0.0)))
    trial = state.attempt(data)
    if trial is not None:
        state.trials[trial.number] = replace(
            trial, state=TrialState.RUNNING, attempt=int(data["attempt"]), node=str(data.get("node", ""))
        )


def _finished(state: _State, data: Mapping[str, Any]) -> None:
    elapsed_s = float(data["elapsed_s"])
    state.elapsed_s = max(state.elapsed_s, elapsed_s)
    trial = state.attempt(data)
    if trial is None:
        return
    outcome: Any = from_wire(cast("type[Any]", Outcome), data["outcome"])
    if not isinstance(outcome, (Measurement, Failure)):
        message = "an outcome is a Measurement or a Failure"
        raise TypeError(message)
    state.trials[trial.number] = replace(
        trial,
        state=TrialState.FINISHED,
        attempt=int(data["attempt"]),
        outcome=outcome,
        seconds=float(data["seconds"]),
        finished_s=elapsed_s,
        start=StartMode[str(data.get("start", StartMode.COLD.name))],
    )
    if state.run is None and trial.stage is Stage.BASELINE and isinstance(outcome, Measurement):
        state.run = None if data.get("facts") is None else from_wire(RunFacts, data["facts"])


def _requeued(state: _State, data: Mapping[str, Any]) -> None:
    trial = state.attempt(data)
    if trial is not None:
        state.trials[trial.number] = replace(
            trial, state=TrialState.WAITING, attempt=int(data["attempt"]) + 1
        )


def _stopped(state: _State, data: Mapping[str, Any]) -> None:
    state.stopped, state.changed = str(data["why"]), str(data.get("changed", ""))
    state.because = str(data.get("because", state.because))
    state.elapsed_s = max(state.elapsed_s, float(data["elapsed_s"]))


def _cut(state: _State, data: Mapping[str, Any]) -> None:
    state.cut.add((Stage(today("stage", data["stage"])), int(data["group"])))


def _transferred(state: _State, data: Mapping[str, Any]) -> None:
    state.transfer = from_wire(Transfer, data["transfer"])


def _busy(state: _State, data: Mapping[str, Any]) -> None:
    state.busy.append(from_wire(MachineLoad, data["load"]))


def _waited(state: _State, data: Mapping[str, Any]) -> None:
    state.waited_s += float(data["seconds"])
    state.elapsed_s = max(state.elapsed_s, float(data["elapsed_s"]))


_HANDLERS: Mapping[str, Callable[[_State, Mapping[str, Any]], None]] = {
    "opened": _opened,
    "inspected": _inspected,
    "proposed": _proposed,
    "started": _started,
    "finished": _finished,
    "requeued": _requeued,
    "stopped": _stopped,
    "cut": _cut,
    "transferred": _transferred,
    "busy": _busy,
    "waited": _waited,
}
