"""Bottleneck, energy per sample and compile payback, as text and figures.

Pure text from `autotune.answer`; an unmeasured figure is reported as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.answer.bottleneck import NAMES, Bottleneck, Evidence, bottleneck, shown, why_not_probed
from autotune.compare.energy import NOT_AVAILABLE, cost_per_million, energy, run_joules
from autotune.model.config import Config
from autotune.report.view import contribution_text, summary
from autotune.report.view.sanitize import clean
from autotune.report.view.summary import duration_text, number_text

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation
    from autotune.model.measurement import Estimate, Measurement
    from autotune.model.study import Study

_BASE = Config()
_MOST_REASONS = 3
_SCRIPT = "your script"
_WITH = "with this config"


def why_lines(study: Study, answer: Answer) -> list[str]:
    """Return the bottlenecks of script and winner with evidence, a line each; empty if unknown."""
    subjects = [(_SCRIPT, _BASE)]
    if answer.is_better:
        subjects.append((f"{_WITH} it", answer.best.config))
    lines: list[str] = []
    not_probed = ""
    for who, config in subjects:
        verdict = bottleneck(study, config)
        seen = verdict.evidence
        if seen is None or (not seen.probed and not study.spec.why):
            continue
        lines.append(_line(who, verdict, seen))
        if not seen.probed:
            not_probed = f" {why_not_probed(study, config)}"
    # The reason for missing evidence is given once, at the end.
    return [*lines[:-1], lines[-1] + not_probed] if lines else []


def _line(who: str, verdict: Bottleneck, seen: Evidence) -> str:
    # Without a probe, the wait is reported below, and missing evidence once after all lines.
    evidence = shown(verdict, most=_MOST_REASONS) if seen.probed else verdict.reasons[1:-1]
    reasons = " ".join(evidence)
    if verdict.kind != "unclear":
        share = verdict.shares.get(verdict.kind)
        much = f" ({100 * share:.0f} % of a step)" if share is not None else ""
        return f"{who} is bound by {NAMES[verdict.kind]}{much}. {reasons}".strip()
    if not seen.probed:
        waits = f"{who} waits for data {100 * seen.wait_frac:.0f} % of its time"
        return f"{waits}; its limit is not clear. {reasons}".strip()
    clear = f"what limits {who} is not clear."
    clear = clear if who == _SCRIPT else f"{_WITH} its limit is not clear."
    return f"{clear} {reasons}".strip()


def reasons(study: Study, answer: Answer) -> list[str]:
    """Return the reasons for the result, a sentence each."""
    best, held_back = answer.best, why_lines(study, answer)
    if not answer.is_better:
        texts = [*(answer.unsettled or (answer.sentence,)), *held_back]
    else:
        waits = "" if held_back else summary.waits_text(study, best)
        texts = [contribution_text.gains_text(study, best), *held_back, waits, *summary.further_reasons(best)]
    return [clean(study, _begun(s)) for s in texts if s]


def _begun(text: str) -> str:
    """Capitalize the beginning of a sentence, except for a knob's name."""
    first = text.split(" ", maxsplit=1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first in {"your", "what", "with"} else text


def bottlenecks(study: Study, answer: Answer) -> dict[str, Bottleneck]:
    """Return the bottlenecks of the script and of the best pick, by ``script`` and ``best``."""
    named = (
        {"script": _BASE} if answer.best.config.is_baseline else {"script": _BASE, "best": answer.best.config}
    )
    return {name: bottleneck(study, config) for name, config in named.items()}


def pays_back_text(pick: Recommendation) -> str:
    """Return the cost and payback time of a compile; empty without one.

    Example: ``2 min once; pays back after 12 min (1200 steps); your run is about 1 h``.
    """
    if not pick.break_even_steps:
        return ""
    once = f"{duration_text(pick.compile_s)} once"
    if pick.pays_back_s is None:
        return f"{once}; paid back after {pick.break_even_steps} steps"
    back = f"{once}; pays back after {duration_text(pick.pays_back_s)} ({pick.break_even_steps} steps)"
    if pick.run_s is None:
        return back
    return f"{back}; your run is about {duration_text(pick.run_s)}{summary.over_run_text(pick)}"


def energy_rows(study: Study, answer: Answer, *, always: bool = False) -> list[tuple[str, str]]:
    """Return rows on energy and cost.

    Args:
        study: Study to show.
        answer: Answer of the study.
        always: Report unavailable energy as well instead of no row.
    """
    rows: list[tuple[str, str]] = []
    own = energy(study, _BASE)
    mine = energy(study, answer.best.config) if answer.is_better else None
    if own is not None:
        text = f"{number_text(own.joules_per_sample, 3)} J per sample for your unchanged script"
        if mine is not None:
            text = f"{number_text(mine.joules_per_sample, 3)} J per sample, {text}"
        rows.append(("energy", f"{text} (of the {own.of}, including other processes)"))
    elif always:
        rows.append(("energy", f"{NOT_AVAILABLE}: no energy counter could be read"))
    cost = cost_text(study, answer)
    return [*rows, ("cost", cost)] if cost else rows


def cost_text(study: Study, answer: Answer) -> str:
    """Return the cost of samples; empty without a price.

    Example: ``0.42 per million samples, 0.98 for your unchanged script (at 2.5 an hour)``.
    """
    price = study.spec.price_per_hour
    if price is None:
        return ""
    own = _cost(study, answer.baseline_throughput)
    if own is None:
        return f"{NOT_AVAILABLE}: how many samples a step takes is not known"
    text = f"{number_text(own, 3)} for your unchanged script (at {number_text(price)} an hour)"
    best = _cost(study, answer.best.throughput) if answer.is_better else None
    return f"{number_text(best, 3)} per million samples, {text}" if best else f"per million samples {text}"


def _cost(study: Study, rate: Estimate) -> float | None:
    return cost_per_million(study.spec.price_per_hour, rate.value, rate.unit)


def why_figures(study: Study, answer: Answer) -> dict[str, float | None]:
    """Return figures by name for a tracker's columns; None if unknown."""
    own, mine = energy(study, _BASE), energy(study, answer.best.config)
    figures: dict[str, float | None] = {
        "baseline_joules_per_sample": own.joules_per_sample if own else None,
        "joules_per_sample": mine.joules_per_sample if mine else None,
        "baseline_cost_per_million": _cost(study, answer.baseline_throughput),
        "cost_per_million": _cost(study, answer.best.throughput),
        "pays_back_seconds": answer.best.pays_back_s,
    }
    for begin, config in (("baseline_", _BASE), ("", answer.best.config)):
        verdict = bottleneck(study, config)
        if verdict.evidence is None or not verdict.evidence.probed:
            continue
        figures |= {f"{begin}bound_{kind}_percent": 100 * v for kind, v in verdict.shares.items()}
        used = verdict.evidence.utilisation
        figures[f"{begin}peak_flops_percent"] = None if used is None else 100 * used
    return figures


def why_tags(study: Study, answer: Answer) -> dict[str, str]:
    """Return texts by name for a tracker's tags."""
    tags = {"autotune.bottleneck": bottleneck(study, _BASE).kind}
    if answer.is_better:
        tags["autotune.bottleneck_best"] = bottleneck(study, answer.best.config).kind
    if energy(study, _BASE) is None:
        tags["autotune.energy"] = NOT_AVAILABLE
    return tags


def why_data(study: Study, answer: Answer) -> dict[str, Any]:
    """Return data for JSON: ``bottleneck``, ``energy`` and ``cost``."""
    configs = {"baseline": _BASE, "best": answer.best.config}
    return {
        "bottleneck": {name: verdict_data(bottleneck(study, config)) for name, config in configs.items()},
        "energy": {
            name: {"joules_per_sample": found.joules_per_sample, "of": found.of, "runs": found.runs}
            if (found := energy(study, config)) is not None
            else NOT_AVAILABLE
            for name, config in configs.items()
        },
        "cost": {
            "price_per_hour": study.spec.price_per_hour,
            "per_million_samples": {
                "baseline": _cost(study, answer.baseline_throughput),
                "best": _cost(study, answer.best.throughput),
            },
        },
    }


def verdict_data(verdict: Bottleneck) -> dict[str, Any]:
    """Return the data of one verdict."""
    return {
        "kind": verdict.kind,
        "shares": {kind: round(share, 4) for kind, share in verdict.shares.items()},
        "reasons": list(verdict.reasons),
        "probed": verdict.evidence is not None and verdict.evidence.probed,
    }


def trial_figures(study: Study, seen: Measurement) -> dict[str, float | None]:
    """Return figures of one run for a tracker's columns; None without a counter or a price."""
    joules = run_joules(seen)
    samples = seen.effective_batch * seen.steps if seen.throughput.unit == "samples/s" else 0.0
    return {
        "joules_per_sample": joules / samples if joules is not None and samples > 0 else None,
        "cost_per_million": _cost(study, seen.throughput),
    }
