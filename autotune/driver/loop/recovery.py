"""Recovery after a dead driver: its open trials, and which of them are run again on resume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.ablation import ablated
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import PAIRED, FailureKind, Family, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.store.journal import Entry

PAIR_S = 600.0
"""Largest time between the two halves of a pair.

Within one life of a driver they are one or two runs, or some minutes, apart. After a longer break the machine
may have changed.
"""

_OF_ATTEMPTS = ("proposed", "started", "finished", "requeued")


def unfinished(entries: Iterable[Entry], host: str) -> set[str]:
    """Return uids of attempts started on this host without a result.

    From a dead driver, or cut off by a driver: their launchers may not have cleaned up.
    """
    started: dict[tuple[int, int], str] = {}
    for entry in entries:
        if entry.kind == "started" and entry.data.get("host") == host:
            started[entry.data["number"], entry.data["attempt"]] = entry.data["uid"]
        elif entry.kind == "finished" or (entry.kind == "requeued" and entry.data.get("ended")):
            started.pop((entry.data["number"], entry.data["attempt"]), None)
    return set(started.values())


def is_run_again(
    trial: Trial, study: Study, entries: Sequence[Entry], *, wall_s: float, up_s: float, host: str
) -> bool:
    """Return whether a trial that was open at the end of the last driver is run again.

    Not so a trial that was open in several drivers, a purely diagnostic one, or half of a pair whose other
    half was measured on the machine in another state.

    Args:
        trial: Open trial of this study.
        study: Folded from the entries.
        entries: The whole journal.
        wall_s: Seconds since the epoch, now.
        up_s: Seconds since this host was started; infinite if unknown.
        host: Its name.
    """
    lives = trial.attempt - 1 if waits(trial, entries) else trial.attempt
    if not trial.stage.is_compared or lives > FailureKind.INFRA_LOST.repeats:
        return False
    if not trial.stage.is_paired:
        return True
    return _is_of_now(study, trial.stage, trial.group, entries, wall_s=wall_s, up_s=up_s, host=host)


def waits(trial: Trial, entries: Iterable[Entry]) -> bool:
    """Return whether this attempt was recorded as planned, and not started."""
    kinds = [e.kind for e in entries if e.kind in _OF_ATTEMPTS and _number(e) == trial.number]
    return kinds[-1:] == ["requeued"]


def cut_cycles(
    study: Study, entries: Sequence[Entry], *, wall_s: float, up_s: float, host: str
) -> frozenset[tuple[Stage, int]]:
    """Return the rounds of paired runs that end here, as further runs would be compared across a break.

    Only the last ones can continue at all. A search that ended by its budget, or between two runs, leaves a
    round as unfinished as a killed one, with no open trial. A round whose reference was given up ends as
    well, as there is nothing to compare with.

    Args:
        study: Folded from the entries, including given-up trials.
        entries: The whole journal.
        wall_s: Seconds since the epoch, now.
        up_s: Seconds since this host was started; infinite if unknown.
        host: Its name.
    """
    cut: set[tuple[Stage, int]] = set()
    for stage in PAIRED:
        runs = [t for t in study.trials if t.stage is stage]
        if not runs:
            continue
        group = max(t.group for t in runs)
        reference = Config() if stage is Stage.CONFIRM else ablated(study)
        given_up = any(
            t.group == group
            and t.config == reference
            and t.failure is not None
            and t.failure.kind.family is Family.CANCELLED
            for t in runs
        )
        if given_up or not _is_of_now(study, stage, group, entries, wall_s=wall_s, up_s=up_s, host=host):
            cut.add((stage, group))
    return frozenset(cut)


def _is_of_now(
    study: Study,
    stage: Stage,
    group: int,
    entries: Sequence[Entry],
    *,
    wall_s: float,
    up_s: float,
    host: str,
) -> bool:
    """Return whether all measurements of a round were made on the machine in its present state.

    That is: on this host, within `PAIR_S`, and since the host was started. Use of the machine by other
    programs is judged per pair, by `autotune.compare.rounds`.

    The wall clock is used, because no other clock continues across processes. After it was set back the round
    does not count.
    """
    halves = {
        t.number
        for t in study.trials
        if t.stage is stage and t.group == group and isinstance(t.outcome, Measurement)
    }
    hosts = {e.data["number"]: e.data.get("host") for e in entries if e.kind == "started"}
    ends = {e.data["number"]: e.wall_s for e in entries if e.kind == "finished"}
    return all(hosts.get(n) == host and 0.0 <= wall_s - ends[n] <= min(PAIR_S, up_s) for n in halves)


def _number(entry: Entry) -> int:
    """Return the number of the trial that an event concerns."""
    data = entry.data["trial"] if entry.kind == "proposed" else entry.data
    return int(data["number"])
