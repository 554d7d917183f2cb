"""What a driver that died has left open, and what of it is asked again on resume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.measurement import Measurement
from autotune.core.trial import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.core.study import Study
    from autotune.core.trial import Trial
    from autotune.store.journal import Entry

PAIR_S = 600.0
"""The halves of a pair lie at most so far apart. Within one life of a driver they are one or two runs
apart, up to some minutes; a machine that was left for longer is another one as far as anybody knows."""

_PAIRED = (Stage.CONFIRM, Stage.ABLATE)


def unfinished(entries: Iterable[Entry], host: str) -> set[str]:
    """Uids of attempts that were started on this host and never ended: a dead driver's."""
    started: dict[tuple[int, int], str] = {}
    for entry in entries:
        if entry.kind == "started" and entry.data.get("host") == host:
            started[entry.data["number"], entry.data["attempt"]] = entry.data["uid"]
        elif entry.kind in ("told", "requeued"):
            started.pop((entry.data["number"], entry.data["attempt"]), None)
    return set(started.values())


def is_asked_again(
    trial: Trial, study: Study, entries: Sequence[Entry], *, wall_s: float, up_s: float, host: str
) -> bool:
    """Whether a trial that the last life left open is run again.

    Not so a trial that has cost several lives already, one that only explains, and half of a pair
    whose other half was not measured on the machine as it is now: on this host, within `PAIR_S`, and
    since the host was started. Whether other programs used the machine alike during both halves is
    judged where every pair is judged, by `autotune.core.cycles`.

    The wall clock is asked, because no other one goes on from one process to the next. Where it was
    put back the pair is given up.

    Args:
        trial: Open, of this study.
        study: Folded from the entries.
        entries: The whole journal.
        wall_s: Seconds since the epoch, now.
        up_s: Seconds since this host was started; infinite where it does not tell.
        host: Its name.
    """
    if trial.stage is Stage.WHY or trial.attempt > FailureKind.INFRA_LOST.repeats:
        return False
    if trial.stage not in _PAIRED:
        return True
    halves = {
        t.number
        for t in study.trials
        if t.stage is trial.stage and t.group == trial.group and isinstance(t.outcome, Measurement)
    }
    hosts = {e.data["number"]: e.data.get("host") for e in entries if e.kind == "started"}
    ends = {e.data["number"]: e.wall_s for e in entries if e.kind == "told"}
    return all(hosts.get(n) == host and 0.0 <= wall_s - ends[n] <= min(PAIR_S, up_s) for n in halves)
