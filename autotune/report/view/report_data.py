"""Figures of the report as plain data, drawn by the page and printed by `--json`.

Nothing is estimated here: claims come from the `Answer`, words from `autotune.report.view.summary`, identical
to those of the terminal, best.yaml and MLflow.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from autotune.answer.advice import advice_data, advice_of
from autotune.answer.closest import closest
from autotune.answer.contributions import contributions
from autotune.model.trial import StartMode
from autotune.report.view import bottleneck_text, summary
from autotune.report.view.environment import environment
from autotune.report.view.next_commands import commands
from autotune.report.view.picks import picks
from autotune.report.view.sanitize import clean, shown_command, shown_config
from autotune.report.view.study_view import failed, headline
from autotune.text.redact import redact

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation
    from autotune.loss.loss_guard import LossVerdict
    from autotune.model.facts import Advice
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.report.view.reselection import Repicked
    from autotune.report.view.study_view import View

SCHEMA: Final = "autotune.report/v1"


def rounded(value: float) -> float | None:
    """Round to six significant digits, as in best.yaml; None if the value is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def advice(study: Study) -> list[Advice]:
    """Return suggested changes of the script's own code without secrets, the largest gain first."""
    return [
        replace(hint, file=clean(study, hint.file), text=clean(study, hint.text)) for hint in advice_of(study)
    ]


def report_data(view: View) -> dict[str, Any]:
    """Return the object of ``autotune.report/v1``: the page's data without loss traces and log tails."""
    study, answer = view.study, view.answer
    spec = study.spec
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "study": {
            "id": spec.study_id,
            "label": clean(study, spec.label),
            "script": clean(study, spec.title),
            "command": shown_command(summary.user_command(study)),
            "created": study.created,
            "stopped": study.stopped,
            "because": study.because,
            "budget_s": spec.budget.seconds,
            "elapsed_s": rounded(study.elapsed_s),
            "trials": len(study.finished()),
            "trials_failed": summary.failed_count(study),
        },
        "status": summary.status(study, answer),
        "headline": headline(view),
        "is_better": answer is not None and answer.is_better,
        "outcome": None if answer is None else answer.outcome.value,
        "wishes": None if view.repicked is None else _wishes_data(view.repicked),
        "environment": environment(study),
        "commands": commands(study, answer, view.repicked, view.yaml),
        "refusals": {k: clean(study, r) for k, r in study.refusals.items()},
        "advice": [advice_data(hint) for hint in advice(study)],
    }
    if answer is not None:
        data |= _answer_data(view, answer)
    data["failed"] = [
        {
            "trial": t.number,
            "config": shown_config(t.config),
            "kind": t.failure.kind.label,
            "message": clean(study, t.failure.message),
        }
        for t in failed(study)
        if t.failure is not None
    ]
    data["trials"] = [_trial_data(study, t) for t in study.finished()]
    return data


def _answer_data(view: View, answer: Answer) -> dict[str, Any]:
    study, effects = view.study, view.effects
    return {
        **bottleneck_text.why_data(study, answer),
        "sentence": clean(study, answer.sentence),
        "caveats": [clean(study, c) for c in answer.caveats],
        "unsettled": [clean(study, u) for u in answer.unsettled],
        "why": bottleneck_text.reasons(study, answer),
        "baseline": {
            "knobs": shown_config(summary.own_values(study)),
            "throughput": estimate_data(answer.baseline_throughput),
            "peak_bytes": answer.baseline_peak_bytes,
        },
        "control": None if answer.identical is None else estimate_data(answer.identical),
        "picks": {name: _pick_data(view, pick) for name, pick in picks(answer).items()},
        "closest": None if answer.is_better or answer.likely else _closest_data(study),
        "front": [
            {
                "trial": m.trial,
                "config": shown_config(m.config),
                "throughput": rounded(m.throughput),
                "peak_bytes": m.peak_bytes,
                "loss": None if m.loss is None else rounded(m.loss),
                "disturbed": m.is_disturbed,
            }
            for m in answer.front
        ],
        "failures": dict(answer.failures),
        "estimates": {
            "how": "additive fit of single screening runs; not confirmed",
            "configs": effects.configs,
            "values": [
                {
                    "knob": e.knob,
                    "value": redact(e.value, free=True) if isinstance(e.value, str) else e.value,
                    "ratio": rounded(e.ratio.value),
                    "low": rounded(e.ratio.low),
                    "high": rounded(e.ratio.high),
                    "configs": e.configs,
                }
                for e in effects.values
            ],
            "interactions": [
                {
                    "knobs": list(e.knobs),
                    "ratio": rounded(e.ratio.value),
                    "low": rounded(e.ratio.low),
                    "high": rounded(e.ratio.high),
                    "configs": e.configs,
                }
                for e in effects.interactions
            ],
        },
    }


def _closest_data(study: Study) -> dict[str, Any] | None:
    found = closest(study)
    if found is None:
        return None
    return {
        "trial": found.trial,
        "changes": shown_config(found.config),
        "speedup": estimate_data(found.ratio),
        "confirmed": found.is_paired,
    }


def _pick_data(view: View, pick: Recommendation) -> dict[str, Any]:
    study, found = view.study, contributions(view.study, pick)
    return {
        "trial": pick.trial,
        "config": shown_config(pick.config),
        "effect": pick.effect.name,
        "speedup": estimate_data(pick.speedup),
        "throughput": estimate_data(pick.throughput),
        "peak_bytes": pick.peak_bytes,
        "loss": _loss_data(pick.loss, clean(study, summary.loss_sentence(pick))),
        "compile_s": rounded(pick.compile_s),
        "break_even_steps": pick.break_even_steps,
        "pays_back_s": None if pick.pays_back_s is None else rounded(pick.pays_back_s),
        "over_run": None if pick.over_run is None else rounded(pick.over_run),
        "contributions": [
            {
                "knob": part.knobs[0],
                "also": list(part.knobs[1:]),
                "gain": rounded(part.ratio.value - 1.0),
                "low": rounded(part.ratio.low - 1.0),
                "high": rounded(part.ratio.high - 1.0),
                "n": part.ratio.n,
                "how": part.source,
            }
            for part in found.parts
        ],
        "not_separated": list(found.not_separated),
        "reasons": [clean(study, r) for r in pick.reasons],
        **({"runs": pick.runs} if pick.runs else {}),
        "pairs": [
            {
                "cycle": p.cycle,
                "baseline": rounded(p.base),
                "config": rounded(p.ours),
                "ratio": rounded(p.ratio),
            }
            for p in view.pairs(pick.config)
        ],
    }


def _wishes_data(repicked: Repicked) -> dict[str, Any]:
    return {
        "objective": repicked.wishes.objective or repicked.study.spec.objective,
        "max_memory_bytes": repicked.wishes.max_memory_bytes,
        "notes": [redact(n, free=True) for n in repicked.notes],
        "estimates": [
            {
                "config": shown_config(e.config),
                "trial": e.trial,
                "ratio": rounded(e.ratio),
                "runs": e.runs,
                "peak_bytes": e.peak_bytes,
                "confirmed": False,
            }
            for e in repicked.estimates
        ],
    }


def _trial_data(study: Study, trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = {
        "trial": trial.number,
        "stage": trial.stage.value,
        "config": shown_config(trial.config),
        "status": summary.status_word(trial),
        "seconds": rounded(trial.seconds),
        "ended_s": rounded(trial.finished_s),
    }
    if trial.group:
        row["cycle"] = trial.group
    if trial.start is not StartMode.COLD:
        row["start"] = trial.start.value
    if trial.node:
        row["node"] = trial.node
    if trial.measurement is not None:
        ratio = summary.speedup_of(study, trial)
        row["throughput"] = rounded(trial.measurement.throughput.value)
        row["peak_bytes"] = trial.measurement.memory.peak_bytes
        row["ratio"] = None if ratio is None else rounded(ratio.value)
    if trial.failure is not None:
        row["kind"] = trial.failure.kind.label
    return row


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """Return a figure with its interval, as in best.yaml."""
    return {
        "value": rounded(estimate.value),
        "low": rounded(estimate.low),
        "high": rounded(estimate.high),
        "n": estimate.n,
        "unit": estimate.unit,
        "confidence": round(estimate.confidence, 6),
    }


def _loss_data(verdict: LossVerdict, sentence: str) -> dict[str, Any]:
    return {
        "level": verdict.level,
        "verdict": verdict.verdict,
        "delta": rounded(verdict.delta),
        "margin": rounded(verdict.margin),
        "steps": verdict.steps,
        "sentence": sentence,
    }
