"""What a driver that died has left open, and what of it is asked again on resume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.ablation import ablated
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import FailureKind, Family, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.store.journal import Entry

PAIR_S = 600.0
"""The halves of a pair lie at most so far apart. Within one life of a driver they are one or two runs
apart, up to some minutes; a machine that was left for longer is another one as far as anybody knows."""

_PAIRED = (Stage.CONFIRM, Stage.ABLATE)
_OF_ATTEMPTS = ("asked", "started", "told", "requeued")


def unfinished(entries: Iterable[Entry], host: str) -> set[str]:
    """Uids of attempts that were started on this host and told of nothing.

    A dead driver's, and those that a driver broke off: their launchers may not have lived to clear up.
    """
    started: dict[tuple[int, int], str] = {}
    for entry in entries:
        if entry.kind == "started" and entry.data.get("host") == host:
            started[entry.data["number"], entry.data["attempt"]] = entry.data["uid"]
        elif entry.kind == "told" or (entry.kind == "requeued" and entry.data.get("ended")):
            started.pop((entry.data["number"], entry.data["attempt"]), None)
    return set(started.values())


def is_asked_again(
    trial: Trial, study: Study, entries: Sequence[Entry], *, wall_s: float, up_s: float, host: str
) -> bool:
    """Whether a trial that the last life left open is run again.

    Not so a trial that has cost several lives already, one that only explains, and half of a pair
    whose other half was not measured on the machine as it is now.

    Args:
        trial: Open, of this study.
        study: Folded from the entries.
        entries: The whole journal.
        wall_s: Seconds since the epoch, now.
        up_s: Seconds since this host was started; infinite where it does not tell.
        host: Its name.
    """
    lives = trial.attempt - 1 if waits(trial, entries) else trial.attempt
    if trial.stage is Stage.DIAGNOSE or lives > FailureKind.INFRA_LOST.repeats:
        return False
    if trial.stage not in _PAIRED:
        return True
    return _is_of_now(study, trial.stage, trial.group, entries, wall_s=wall_s, up_s=up_s, host=host)


def waits(trial: Trial, entries: Iterable[Entry]) -> bool:
    """Whether this attempt was set down to be run, and nobody has begun with it."""
    kinds = [e.kind for e in entries if e.kind in _OF_ATTEMPTS and _number(e) == trial.number]
    return kinds[-1:] == ["requeued"]


def cut_cycles(
    study: Study, entries: Sequence[Entry], *, wall_s: float, up_s: float, host: str
) -> frozenset[tuple[Stage, int]]:
    """Cycles of paired runs that end here: what is run in them now would be compared with another day.

    Only the last ones can go on at all. A search that ended by its budget, or between two runs,
    leaves a cycle as unfinished as one that was killed, with no open trial to show it. A cycle whose
    reference was given up ends as well: there is nothing to compare with.

    Args:
        study: Folded from the entries, whatever is given up told.
        entries: The whole journal.
        wall_s: Seconds since the epoch, now.
        up_s: Seconds since this host was started; infinite where it does not tell.
        host: Its name.
    """
    cut: set[tuple[Stage, int]] = set()
    for stage in _PAIRED:
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
    """All that was measured in a cycle was so on the machine as it is now.

    That is: on this host, within `PAIR_S`, and since the host was started. Whether other programs
    used the machine alike is judged where every pair is judged, by `autotune.compare.rounds`.

    The wall clock is asked, because no other one goes on from one process to the next. Where it was
    put back the cycle is none of now.
    """
    halves = {
        t.number
        for t in study.trials
        if t.stage is stage and t.group == group and isinstance(t.outcome, Measurement)
    }
    hosts = {e.data["number"]: e.data.get("host") for e in entries if e.kind == "started"}
    ends = {e.data["number"]: e.wall_s for e in entries if e.kind == "told"}
    return all(hosts.get(n) == host and 0.0 <= wall_s - ends[n] <= min(PAIR_S, up_s) for n in halves)


def _number(entry: Entry) -> int:
    """Of the trial that an event is about."""
    data = entry.data["trial"] if entry.kind == "asked" else entry.data
    return int(data["number"])
