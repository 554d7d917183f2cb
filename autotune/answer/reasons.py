"""Text of the picks: their reasons, and the one-line summary of the answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.closest import closest
from autotune.answer.eligibility import why_not
from autotune.answer.outcome import too_noisy_text
from autotune.compare.ablation import idle_knobs, knob_gains, without_idle
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.control import weakness
from autotune.compare.disturbances import is_crowded
from autotune.compare.loss_verdicts import judged_steps
from autotune.loss.delayed_harm_rules import unshown
from autotune.model.config import Config
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.answer.answer import Recommendation
    from autotune.answer.closest import Closest
    from autotune.compare.comparison import Comparison
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study

_BASE = Config()


def reasons_for(study: Study, chosen: Comparison) -> list[str]:
    """Return why a config is recommended and what it changes, as whole sentences."""
    speedup = chosen.speedup
    what = "reaches the same loss" if chosen.effect is Effect.TRAINING else "trains"
    steps = judged_steps(study, chosen.config, chosen.loss)
    reasons = [
        f"It {what} {ratio_text(speedup)} times as fast, in {speedup.n} pairs of fresh runs.",
        *_saving_text(chosen),
        chosen.loss.reason,
        *(found.sentence for found in unshown(study, chosen.config, steps)),
    ]
    base = largest_peak_bytes(study, _BASE)
    if chosen.peak_bytes is not None and base:
        reasons.append(f"Its peak memory is {chosen.peak_bytes / base:.2f} times that of your script.")
    space = study.spec.space
    if chosen.effect is Effect.TRAINING:
        named = [k for k in chosen.config if k in space.allowed or k == "effective_batch"]
        changing = [
            k for k in named if not study.space or study.space.effect(Config({k: 0})) is Effect.TRAINING
        ]
        names = ", ".join(changing).replace("_", " ") or "the effective batch or what depends on it"
        reasons.append(f"It changes the training itself: {names}.")
    if own := [spec.name for spec in space.declared if spec.name in chosen.config]:
        reasons.append(f"{', '.join(own)}: delivered, effect not read.")
    reasons += _removed_text(study, chosen.config)
    return [r for r in reasons if r]


def _saving_text(chosen: Comparison) -> list[str]:
    """Return a sentence about its energy per sample, if energy is the objective."""
    saving = chosen.saving
    if saving is None or min(saving.low, saving.value) <= 0:
        return []
    value, low, high = 1.0 / saving.value, 1.0 / saving.high, 1.0 / saving.low
    ratio = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return [f"It takes {ratio} times your script's energy per sample, in {saving.n} pairs."]


def _removed_text(study: Study, config: Config) -> list[str]:
    """Return a sentence about the knobs that an ablation removed from this config, if any."""
    if config != without_idle(study):
        return []
    found = knob_gains(study)
    knobs = ", ".join(f"{knob} ({ratio_text(found[knob])})" for knob in idle_knobs(found))
    return [f"Removed, because it has no measurable effect: {knobs}."]


def ratio_text(speedup: Estimate) -> str:
    """Return a ratio with its interval, or with its lower bound if the interval is unbounded."""
    if speedup.is_bounded:
        return f"{speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]"
    return f"{speedup.value:.2f} ({unbounded_text(speedup)})"


def unbounded_text(speedup: Estimate) -> str:
    """Return the text shown in place of an unbounded interval."""
    return f"at least {speedup.low:.2f}" if speedup.low > 1.0 else "too few runs for an interval"


def closest_text(study: Study, found: Closest) -> str:
    """Return ``bf16, reads 1.21 [0.98, 1.49] in 4 pairs``, or that the runs are too noisy."""
    ratio = f"{found.ratio.value:.2f} {found.rests_on}"
    if found.is_paired and found.ratio.is_bounded:
        ratio = f"{ratio_text(found.ratio)} {found.rests_on}"
    elif found.is_paired:
        ratio += f", {too_noisy_text(study)}"
    return f"{found.config.text()}, reads {ratio}"


def sentence(
    study: Study,
    best: Recommendation,
    fastest: Comparison | None,
    compared: Sequence[Comparison],
    bar: float,
) -> str:
    """Return a one-line summary of the answer.

    Args:
        study: The study so far.
        best: The pick ``best``; the baseline if no config beats it.
        fastest: The training-changing pick, or None.
        compared: All confirmed configs.
        bar: From `claim_bar`.
    """
    if not best.config.is_baseline:
        ratio = f"{ratio_text(best.speedup)} times as fast as your script"
        others = ", while other processes used the machine" if is_crowded(study, best.config) else ""
        weak = f"; {found}" if (found := weakness(study, best.speedup)) else ""
        return f"{best.config.text()} is {ratio}, {best.speedup.n} pairs{others}{weak}."
    near = closest(study)
    if near is None:
        return "Nothing was confirmed to be faster than your unchanged script."
    if fastest is not None:
        return (
            "Nothing that keeps the training was confirmed to be faster; "
            f"{fastest.config.text()} changes it and reaches the same loss {ratio_text(fastest.speedup)} "
            "times as fast."
        )
    top = next((c for c in compared if c.config == near.config), None)
    if top is not None and top.wins:
        return (
            f"{top.config.text()} is {ratio_text(top.speedup)} times as fast, but {why_not(study, top, bar)}."
        )
    known = "is confirmed to be faster than your script" if compared else "was confirmed to be faster"
    return f"Nothing {known}; the closest, {closest_text(study, near)}."
