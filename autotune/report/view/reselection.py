"""Reselection by other criteria, from measured trials. Pure; nothing is run.

Recommendations depend on confirmed pairs as before. Configs with single runs only are listed separately as
estimates: the largest of many single figures is as much lucky as good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.answer.pick import answer
from autotune.compare.amortised_rate import screened
from autotune.compare.comparison import compare
from autotune.compare.energy import energy
from autotune.compare.failed_configs import broken
from autotune.compare.loss_verdicts import trace_steps
from autotune.errors import UsageError
from autotune.loss.delayed_harm_rules import barred
from autotune.loss.loss_guard import finite_and_sane
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY, WANTED, Constraint
from autotune.model.trial import Stage
from autotune.report.view.rerun_command import pinned_command
from autotune.report.view.summary import number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

_MOST_ESTIMATES: Final = 5
_ENERGY_TIE: Final = 0.02
"""Relative difference in energy that counts as equal: counters cover whole packages and devices, shared with
other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionCriteria:
    """Criteria that replace those of the search.

    Args:
        objective: ``throughput``; ``memory`` or ``energy``: the least peak memory, or the fewest joules per
            sample, among configs faster than the script. ``cost``: the least money per sample, which on one
            machine at one price is the fastest. Empty for the objective of the search.
        max_memory_bytes: Upper bound on peak memory; None keeps the search's own.
    """

    objective: str = ""
    max_memory_bytes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.objective) or self.max_memory_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A config with single runs that no pair confirmed.

    Args:
        ratio: Its mean rate in screening over the script's, without an interval.
        runs: Number of its single runs.
    """

    config: Config
    trial: int
    ratio: float
    runs: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repicked:
    """A study under other selection criteria.

    Args:
        study: Study with these criteria in its specification.
        answer: Answer from confirmed pairs alone.
        own_max_bytes: Memory bound of the search itself.
        estimates: Further configs by single runs, best first.
        notes: Sentences on the method and its limits.
    """

    wishes: SelectionCriteria
    study: Study
    answer: Answer
    estimates: tuple[Estimated, ...]
    notes: tuple[str, ...]
    own_max_bytes: int | None = None


def repick(study: Study, wishes: SelectionCriteria) -> Repicked:
    """Select again from the stored trials.

    Args:
        study: Study with a measured baseline.
        wishes: Criteria other than the search's own.

    Raises:
        AutotuneError: No baseline run was measured.
        UsageError: The objective is energy without a counter, or cost without a price.
    """
    _check(study, wishes)
    if wishes.objective in ("throughput", "memory", "cost"):
        study = replace(study, spec=replace(study.spec, objective="throughput"))
    own = study.spec.max_memory_bytes
    bound = wishes.max_memory_bytes if wishes.max_memory_bytes is not None else own
    bounded = _bounded(study, bound)
    found = answer(bounded)
    if wishes.objective == "memory":
        bounded, found = _least_memory(bounded, found)
        # The bound found its pick, but it is no criterion of the user.
        bounded = _bounded(bounded, bound)
    elif wishes.objective == ENERGY and study.spec.objective != ENERGY:
        found = _least_energy(bounded, found)
    estimates = _estimates(bounded, found, wishes, bound)
    return Repicked(
        wishes=wishes,
        study=bounded,
        # Unconfirmed configs are among the estimates.
        answer=replace(found, likely=None, resume=""),
        estimates=estimates,
        notes=tuple(_notes(bounded, found, wishes, own=own, estimates=estimates)),
        own_max_bytes=own,
    )


def _check(study: Study, wishes: SelectionCriteria) -> None:
    label = study.spec.label
    if wishes.objective == "energy" and energy(study, Config()) is None:
        message = f"study {label} counted no energy, so no configuration can be selected by energy"
        hint = "it is read from counters of GPU and processor; `autotune doctor` lists them"
        raise UsageError(message, hint=hint)
    if wishes.objective == "cost" and study.spec.price_per_hour is None:
        message = f"study {label} was searched without a price"
        raise UsageError(
            message, hint="autotune search --price-per-hour; at one price the fastest is the cheapest"
        )


def _bounded(study: Study, bound: int | None) -> Study:
    # A bound of the space file is a constraint; the new criterion replaces it.
    kept = tuple(c for c in study.spec.constraints if c.metric != "peak_memory")
    return replace(study, spec=replace(study.spec, max_memory_bytes=bound, constraints=kept))


def _least_memory(study: Study, found: Answer) -> tuple[Study, Answer]:
    """Return the answer under the tightest bound that leaves a config faster than the script."""
    bound = study.spec.max_memory_bytes
    peaks = {c.peak_bytes for c in compare(study) if c.peak_bytes is not None}
    bounds = [_bounded(study, peak) for peak in sorted(p for p in peaks if bound is None or p <= bound)]
    tries = [(tight, tried) for tight in bounds if (tried := answer(tight)).is_better]
    if not tries:
        return study, found
    # The criterion, not a limit, excludes configs above a tight bound: each pick has its own bound, and the
    # caveats are those of the user's.
    tight, lean = tries[0]
    safes = [tried.safe for _, tried in tries if not tried.safe.config.is_baseline]
    lean = replace(
        lean,
        safe=safes[0] if safes else lean.safe,
        fastest=lean.fastest or found.fastest,
        caveats=(*found.caveats, *_passed_over(found, lean)),
    )
    return tight, lean


def _least_energy(study: Study, found: Answer) -> Answer:
    """Return the answer under the tightest energy bound that leaves a faster config with less energy."""
    own = energy(study, Config())
    if own is None:
        return found
    most = own.joules_per_sample * (1.0 - _ENERGY_TIE)
    counted = [e for c in compare(study) if (e := energy(study, c.config)) is not None]
    least = {e.joules_per_sample for e in counted if e.of == own.of and e.joules_per_sample <= most}
    tries = [answer(_within(study, min(most, joules * (1.0 + _ENERGY_TIE)))) for joules in sorted(least)]
    frugal = next((tried for tried in tries if tried.is_better), None)
    if frugal is None:
        return answer(_within(study, most))
    # Each pick has its own bound: the criterion excludes configs above the tightest one.
    safes = [tried.safe for tried in tries if not tried.safe.config.is_baseline]
    return replace(
        frugal,
        safe=safes[0] if safes else frugal.safe,
        fastest=frugal.fastest or found.fastest,
        caveats=(*found.caveats, *_spent_more(study, found, frugal)),
    )


def _within(study: Study, joules: float) -> Study:
    bound = Constraint(metric="joules_per_sample", at_most=joules)
    return replace(study, spec=replace(study.spec, constraints=(*study.spec.constraints, bound)))


def _spent_more(study: Study, found: Answer, frugal: Answer) -> list[str]:
    """Return a note on the pick that was replaced for its energy, if there is one."""
    faster = found.best
    if faster.config == frugal.best.config:
        return []
    theirs, mine = energy(study, faster.config), energy(study, frugal.best.config)
    reads = f"{faster.config.text()} reads {faster.speedup.value:.2f} in pairs"
    if theirs is None or mine is None:
        return [f"{reads}, but its energy was not measured: it was not selected."]
    more, less = number_text(theirs.joules_per_sample, 3), number_text(mine.joules_per_sample, 3)
    reading = f"{reads} and takes {more} J per sample, the pick {less} J"
    return [f"{reading}: it was not selected, as the objective is the least energy."]


def _passed_over(found: Answer, lean: Answer) -> list[str]:
    """Return a note on the pick that was replaced for its memory, if there is one."""
    faster, peak, least = found.best, found.best.peak_bytes, lean.best.peak_bytes
    if faster.config == lean.best.config or peak is None or least is None or peak <= least:
        return []
    needs = (
        f"{faster.config.text()} reads {faster.speedup.value:.2f} in pairs and needs {peak / 2**30:.2f} GiB"
    )
    why = "it was not selected, as the objective is the least memory."
    return [f"{needs}, the pick {least / 2**30:.2f} GiB: {why}"]


def _estimates(
    study: Study, found: Answer, wishes: SelectionCriteria, bound: int | None
) -> tuple[Estimated, ...]:
    rates = screened(study)
    base = rates.get(Config(), 0.0)
    if base <= 0:
        return ()
    confirmed = {c.config for c in compare(study)}
    failed = broken(study)
    chosen: list[Estimated] = []
    for config, rate in rates.items():
        if config.is_baseline or config in confirmed or config in failed or rate <= base:
            continue
        space = study.space
        if space is not None and space.effect(config) is Effect.TRAINING:
            continue
        if barred(study, config, trace_steps(study)) is not None:
            continue
        runs = [t for t in study.of(config, Stage.INITIAL, Stage.REFINE) if t.measurement is not None]
        measured = [t.measurement for t in runs if t.measurement is not None]
        if any(finite_and_sane(m.loss).verdict == "fail" for m in measured):
            continue
        peaks = [m.memory.peak_bytes for m in measured if m.memory.peak_bytes is not None]
        peak = max(peaks, default=None)
        if bound is not None and peak is not None and peak > bound:
            continue
        chosen.append(
            Estimated(config=config, trial=runs[0].number, ratio=rate / base, runs=len(runs), peak_bytes=peak)
        )
    best = found.best
    if wishes.objective == "energy":
        own = energy(study, best.config)
        spent = [(e, used) for e in chosen if (used := energy(study, e.config)) is not None]
        frugal = [
            (u.joules_per_sample, e) for e, u in spent if own and u.joules_per_sample < own.joules_per_sample
        ]
        return tuple(e for _, e in sorted(frugal, key=lambda pair: pair[0])[:_MOST_ESTIMATES])
    if wishes.objective == "memory":
        ceiling = best.peak_bytes if best.peak_bytes is not None else found.baseline_peak_bytes
        lighter = [
            e for e in chosen if e.peak_bytes is not None and (ceiling is None or e.peak_bytes < ceiling)
        ]
        return tuple(sorted(lighter, key=lambda e: (e.peak_bytes or 0, -e.ratio))[:_MOST_ESTIMATES])
    faster = [e for e in chosen if e.ratio > best.speedup.value]
    return tuple(sorted(faster, key=lambda e: -e.ratio)[:_MOST_ESTIMATES])


def _notes(
    study: Study, found: Answer, wishes: SelectionCriteria, *, own: int | None, estimates: Sequence[Estimated]
) -> list[str]:
    criteria = [WANTED[wishes.objective]] if wishes.objective in WANTED else []
    bound = wishes.max_memory_bytes
    if bound is not None:
        criteria.append(f"at most {bound / 2**30:.2f} GiB of peak memory")
    listed = ", ".join(criteria) or "speed"
    notes = [f"Selected again from stored trials; nothing was measured. Criteria: {listed}."]
    if found.is_better:
        notes.append(
            f"The pick is confirmed: it was compared with your script in {found.best.speedup.n} pairs of "
            "fresh runs when the study was searched."
        )
    else:
        notes.append("No configuration within these criteria was confirmed to be faster than your script.")
    if bound is not None and own is not None and bound > own:
        notes.append(
            f"The search itself was held to {own / 2**30:.2f} GiB, so few configurations above that were "
            "tried."
        )
    if bound is not None and (found.baseline_peak_bytes or 0) > bound:
        notes.append(
            f"Your unchanged script needs {(found.baseline_peak_bytes or 0) / 2**30:.2f} GiB, more than that."
        )
    if estimates:
        notes.append(
            "The estimates are of single runs of the search: not confirmed in pairs, and the largest of "
            f"many is too high on average. {_to_confirm(study, estimates[0], wishes)}"
        )
    return notes


def _to_confirm(study: Study, first: Estimated, wishes: SelectionCriteria) -> str:
    """Return the command that confirms an estimate: the search with its knobs pinned."""
    if wishes.objective == ENERGY:
        study = replace(study, spec=replace(study.spec, objective=ENERGY))
    command = pinned_command(study, first.config)
    if not command:
        return "To confirm the first, search again with its knobs pinned (--fix)."
    return f"To confirm the first, search again with its knobs pinned: {command}"
