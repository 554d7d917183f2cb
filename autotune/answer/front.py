"""The Pareto front of a study: configs that no other config dominates beyond noise. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

from autotune.answer.answer import FrontMember
from autotune.compare.amortised_rate import amortised
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.disturbances import is_disturbed
from autotune.compare.loss_verdicts import loss_traces
from autotune.compare.rounds import in_own_unit
from autotune.loss.loss_guard import finite_and_sane
from autotune.model.config import Config
from autotune.statistics.intervals import sd
from autotune.statistics.spread import run_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.measurement import LossPoint, Measurement
    from autotune.model.study import Study

_BASE = Config()
_NORMAL: Final = 1.96
_LEAST_SAVED_FRAC: Final = 0.05
_LEAST_SAVED_BYTES: Final = 16 * 2**20
"""Smaller differences in peak memory are noise of allocators and shared pages (decision 100)."""
_LOSS_SDS: Final = 3.0
_LOSS_FRAC: Final = 0.01
"""A late loss is worse than the script's if it exceeds it by this many standard deviations of its runs, and
by this share."""


class _Candidate(NamedTuple):
    """A measured config.

    Args:
        member: Its entry on the front.
        logs: ln rate of each run.
        peaks: ln peak memory of each run.
        holds: Its late loss is not worse than the script's beyond noise.
    """

    member: FrontMember
    logs: Sequence[float]
    peaks: Sequence[float]
    holds: bool

    @property
    def preference(self) -> tuple[int, int, float]:
        """Sort key among equal configs: most runs, then fewest changes, then highest throughput."""
        return -len(self.logs), len(self.member.config), -self.member.throughput


class _Noise(NamedTuple):
    """Standard deviations between runs of one config, in ln rate and in ln peak memory."""

    rate: float
    peak: float

    def is_faster(self, one: _Candidate, other: _Candidate) -> bool:
        """Return whether `one` is faster than `other` beyond the scatter of their means."""
        scatter = self.rate * math.sqrt(1.0 / len(one.logs) + 1.0 / len(other.logs))
        return math.log(one.member.throughput / other.member.throughput) > _NORMAL * scatter

    def saves_memory(self, one: _Candidate, other: _Candidate) -> bool:
        """Return whether `one` needs clearly less memory than `other`; False if a peak is unknown."""
        peak, reference = one.member.peak_bytes, other.member.peak_bytes
        if peak is None or reference is None:
            return False
        frac = max(_LEAST_SAVED_FRAC, _NORMAL * math.sqrt(2.0) * self.peak)
        return reference - peak > max(_LEAST_SAVED_BYTES, frac * reference)

    def is_better(self, one: _Candidate, other: _Candidate) -> bool:
        """Return whether `one` is better than `other` in any respect, beyond noise."""
        better_loss = one.holds and not other.holds
        return self.is_faster(one, other) or self.saves_memory(one, other) or better_loss

    def dominates(self, one: _Candidate, other: _Candidate) -> bool:
        """Return whether `one` is better than `other` in some respect and worse in none, beyond noise."""
        return self.is_better(one, other) and not self.is_better(other, one)


def front_members(study: Study) -> tuple[FrontMember, ...]:
    """Return the Pareto front, fastest first.

    A config dominates another if it is better in throughput, peak memory or loss beyond noise, and worse in
    none. Losses count only as held or worse than the script's, so a lower loss keeps no slow config on the
    front. Configs with disturbed runs only are members, and marked, if no others exist.
    """
    found = _candidates(study)
    found = [c for c in found if not c.member.is_disturbed] or found
    noise = _Noise(run_spread(c.logs for c in found), run_spread(c.peaks for c in found))
    best = [c for c in found if not any(noise.dominates(other, c) for other in found)]
    front: list[_Candidate] = []
    for one in sorted(best, key=lambda c: c.preference):
        if all(noise.is_better(one, other) or noise.is_better(other, one) for other in front):
            front.append(one)
    return tuple(sorted((c.member for c in front), key=lambda m: -m.throughput))


def _candidates(study: Study) -> list[_Candidate]:
    end = min((m.loss[-1].samples for t in study.finished() if (m := t.measurement) and m.loss), default=0)
    base = [v for t in loss_traces(study, _BASE).values() if (v := _late_loss(t, end)) is not None]
    middle = statistics.fmean(base) if base else math.inf
    worst = middle + max(_LOSS_SDS * sd(base), _LOSS_FRAC * abs(middle)) if base else math.inf
    runs: dict[Config, list[tuple[int, bool, Measurement]]] = {}
    for t in in_own_unit(study, study.finished()):
        if t.measurement is not None and amortised(study, t.measurement) > 0:
            runs.setdefault(t.config, []).append((t.number, is_disturbed(study, t), t.measurement))
    found: list[_Candidate] = []
    for config, measured in runs.items():
        if any(finite_and_sane(m.loss).verdict == "fail" for _, _, m in measured):
            continue
        used = [m for _, disturbed, m in measured if not disturbed]
        marked, used = not used, used or [m for _, _, m in measured]
        rates = [amortised(study, m) for m in used]
        loss = _late_loss(used[0].loss, end)
        member = FrontMember(
            trial=measured[0][0],
            config=config,
            throughput=statistics.fmean(rates),
            peak_bytes=largest_peak_bytes(study, config),
            loss=loss,
            is_disturbed=marked,
        )
        peaks = [math.log(m.memory.peak_bytes) for m in used if m.memory.peak_bytes]
        found.append(_Candidate(member, [math.log(r) for r in rates], peaks, loss is None or loss <= worst))
    return found


def _late_loss(trace: Sequence[LossPoint], end: int) -> float | None:
    late = [p.loss for p in trace if 2 * end / 3 < p.samples <= end] or [p.loss for p in trace[-3:]]
    return statistics.fmean(late) if late else None
