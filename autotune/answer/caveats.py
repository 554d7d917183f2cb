"""Caveats of a study's answer, as whole sentences. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from autotune.answer.communication import dropped_text
from autotune.answer.eligibility import how_it_broke, late_compile, why_not
from autotune.answer.reasons import ratio_text
from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.compare.amortised_rate import baseline_runs, screened
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.disturbances import busy_notes, clocks_apart, left_out, marked_runs
from autotune.compare.drift import drifted
from autotune.compare.energy import energy
from autotune.compare.finalists import fastest_fitting, fits_and_is_sane
from autotune.compare.loss_verdicts import loss_traces, trace_steps
from autotune.compare.rounds import confirmation_cycles, disturbed_pairs
from autotune.loss.delayed_harm_rules import barred
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import ENERGY
from autotune.model.study import SCRIPT_CHANGED
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.compare.comparison import Comparison
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

_BASE = Config()
_WORTH_NAMING = 1.05
"""Smallest ratio of steady rates worth a sentence if the compile is not paid back."""


def caveats(
    study: Study, rest: Sequence[Comparison], identical: Estimate | None, bar: float
) -> tuple[str, ...]:
    """Return what weakens the claim, and what was not reached.

    Args:
        study: The study so far.
        rest: Compared configs that do not win.
        identical: From `control`.
        bar: From `claim_bar`.
    """
    found: list[str] = []
    if study.stopped == SCRIPT_CHANGED:
        changed = study.changed or f"{study.spec.title} was changed meanwhile"
        found.append(f"{changed}: this holds for the script before the change.")
    found += [*_memory_caveat(study), *_energy_caveat(study), *_compile_caveat(study)]
    if identical is not None and bar > 1.0:
        found.append(
            f"Your script differs from itself by {ratio_text(identical)}: this machine was not steady, so "
            f"a gain is claimed only with a lower bound above {bar:.2f}."
        )
    if (moved := drifted(study)) is not None:
        found.append(
            f"The machine drifted: at the end your script itself ran {ratio_text(moved)} times as fast as at "
            "the start. Gains are measured within pairs, which this does not affect; figures of single "
            "trials are affected."
        )
    for c in rest:
        if c.wins:
            found.append(f"{c.config.text()} reads {ratio_text(c.speedup)}, but {why_not(study, c, bar)}.")
        elif 0 < c.speedup.n < FEWEST_PAIRS:
            few = f"{c.config.text()} was confirmed in {c.speedup.n} of {FEWEST_PAIRS} pairs only"
            broke = how_it_broke(study, c.config)
            found.append(f"{few}: {broke}." if broke else f"{few}.")
    if confirmation_cycles(study) and identical is None:
        found.append("Too few runs for an A/A check, which compares your script with itself.")
    found += _refused_caveat(study)
    if dropped := dropped_text(study):
        found.append(dropped)
    if aside := disturbed_pairs(study, Stage.CONFIRM, _BASE):
        found.append(
            f"{aside} pair{'s were' if aside > 1 else ' was'} left out: another process used the machine "
            "during one of the two runs only."
        )
    if not loss_traces(study, _BASE):
        found.append(
            "No loss was seen, so only changes that leave the arithmetic unchanged can be recommended."
        )
    return tuple(found)


def seen_from_outside(study: Study, compared: Sequence[Comparison]) -> list[str]:
    """Return notes on disturbances of the runs behind these comparisons."""
    configs = list(dict.fromkeys(c.config for c in compared))
    notes = [*marked_runs(study, configs), *clocks_apart(study, configs), *left_out(study)]
    return [*notes, *busy_notes(study)]


def _refused_caveat(study: Study) -> list[str]:
    """Return a sentence about the fastest screened config if a rule on delayed harm excludes it."""
    ranked, steps = screened(study), trace_steps(study)
    tried = {t.config for t in study.finished(Stage.CONFIRM)}
    found = {c: why for c in ranked if c not in tried and (why := barred(study, c, steps)) is not None}
    found = {c: why for c, why in found.items() if fits_and_is_sane(study, c)}
    if not found:
        return []
    config = max(found, key=lambda c: (ranked[c], c.canonical()))
    base = ranked.get(_BASE, 0.0)
    if base <= 0 or ranked[config] <= max(r for c, r in ranked.items() if c not in found):
        return []
    ratio = ranked[config] / base
    return [f"{config.text()} read {ratio:.2f} in screening and was not confirmed. {found[config].sentence}"]


def _compile_caveat(study: Study) -> list[str]:
    """Return a sentence about the fastest steps whose compile the planned run does not pay back."""
    own = [t.measurement.throughput.value for t in baseline_runs(study) if t.measurement]
    if not own:
        return []
    base, ratios = statistics.fmean(own), dict[Config, float]()
    tried = {t.config for t in study.finished(Stage.CONFIRM)}
    for t in study.finished(Stage.INITIAL, Stage.REFINE):
        keeps = study.space is None or study.space.effect(t.config) is not Effect.TRAINING
        if t.measurement is not None and keeps and t.config not in tried:
            ratios[t.config] = t.measurement.throughput.value / base
    late = {c: why for c, r in ratios.items() if r > _WORTH_NAMING and (why := late_compile(study, c))}
    if not late:
        return []
    config = max(late, key=lambda c: (ratios[c], c.canonical()))
    begun = f"The steps of {config.text()} ran {ratios[config]:.2f} times as fast, but {late[config]}."
    if study.spec.run_steps is not None:
        return [begun]
    return [f"{begun} For a longer run, give its optimizer steps: --run-steps N."]


def _memory_caveat(study: Study) -> list[str]:
    """Return a sentence about the fastest config that fits if the script exceeds the memory limit."""
    bound, own = study.spec.max_memory_bytes, largest_peak_bytes(study, _BASE)
    if bound is None or own is None or own <= bound or (config := fastest_fitting(study)) is None:
        return []
    needs = (
        f"Your unchanged script needs {own / 2**30:.2f} GiB, more than the {bound / 2**30:.2f} GiB allowed"
    )
    return [f"{needs}; the fastest seen that fits is {config.text()}."]


def _energy_caveat(study: Study) -> list[str]:
    if study.spec.objective != ENERGY or energy(study, _BASE) is not None:
        return []
    return ["No energy was measured for your script, so no configuration can be selected by energy."]
