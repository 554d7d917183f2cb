"""The figures behind the report, as plain data: what the page draws, and what `--json` prints.

Nothing here is estimated anew: claims come from the `Answer`, words from `autotune.report.summary`, both as
the terminal, best.yaml and MLflow have them.
"""

from __future__ import annotations

import math
import shlex
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autotune.core.advice import advice_data, advice_of
from autotune.core.agreement import agreements
from autotune.core.bottleneck import bottleneck
from autotune.core.config import Config
from autotune.core.cycles import alike_cycles
from autotune.core.loss_guard import finite_and_sane
from autotune.core.pick import amortised, compare
from autotune.core.redact import redact
from autotune.core.transfer import beliefs
from autotune.core.trial import Family, Stage, Start
from autotune.report import summary, why
from autotune.report.again import memory_text, search_command
from autotune.report.effects import estimated
from autotune.report.shown import clean, shown_command, shown_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.bottleneck import Bottleneck
    from autotune.core.facts import Advice
    from autotune.core.loss_guard import LossVerdict
    from autotune.core.measurement import Estimate, LossPoint, Measurement
    from autotune.core.pick import Answer, Comparison, Recommendation
    from autotune.core.study import Study
    from autotune.core.trial import Trial
    from autotune.report.effects import Effects
    from autotune.report.wishes import Repicked

SCHEMA: Final = "autotune.report/v1"

QUANTILES: Final = ("step_s_p05", "step_s_p25", "step_s_p50", "step_s_p75", "step_s_p95")
"""Names under which a measurement keeps quantiles of its step times, where it has them."""

PICKED: Final = "picked.yaml"
"""File for picks made anew, where no other is named; best.yaml has those of the search."""

_TAIL_LINES: Final = 24
_TAIL_CHARACTERS: Final = 2400
_BASE: Final = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One measured configuration.

    Args:
        trial: The first that measured it.
        rate: Mean amortised throughput of all its runs.
        peak_bytes: Largest seen.
        runs: How many runs.
        loss: ``pass``, ``fail``, or ``unclear`` where the guard has not judged it.
        is_confirmed: It took part in confirmation.
    """

    config: Config
    trial: int
    rate: float
    peak_bytes: int | None
    runs: int
    loss: str
    is_confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRuns:
    """One confirmation cycle: the script and a configuration in fresh processes, next to each other.

    Args:
        ratio: What the pair counts for; that of throughput, or of the time to equal loss.
    """

    cycle: int
    base: float
    ours: float
    ratio: float


def rounded(value: float) -> float | None:
    """Six significant digits, as best.yaml has them; None where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def picks(answer: Answer) -> dict[str, Recommendation]:
    """Name -> pick, as best.yaml has them."""
    named = {"best": answer.best, "safe": answer.safe, "fastest": answer.fastest}
    return {name: pick for name, pick in named.items() if pick is not None}


def shown_picks(answer: Answer | None) -> dict[str, Recommendation]:
    """Those that change something, each configuration once; best first."""
    found: dict[str, Recommendation] = {}
    for name, pick in picks(answer).items() if answer is not None else ():
        if not pick.config.is_baseline and all(pick.config != other.config for other in found.values()):
            found[name] = pick
    return found


def tried(study: Study, compared: Sequence[Comparison]) -> list[Tried]:
    """Every measured configuration, in the order of trying.

    Args:
        study: As it is.
        compared: Of `autotune.core.pick.compare`.
    """
    by_config: dict[Config, list[Trial]] = {}
    for trial in study.told():
        if trial.measurement is not None:
            by_config.setdefault(trial.config, []).append(trial)
    confirmed = {c.config: c for c in compared}
    return [
        Tried(
            config=config,
            trial=trials[0].number,
            rate=statistics.fmean(amortised(study, m) for m in _measurements(trials)),
            peak_bytes=max(
                (m.memory.peak_bytes for m in _measurements(trials) if m.memory.peak_bytes is not None),
                default=None,
            ),
            runs=len(trials),
            loss=_loss_word(config, trials, confirmed.get(config)),
            is_confirmed=config in confirmed,
        )
        for config, trials in by_config.items()
    ]


def runs_of(study: Study, config: Config) -> list[Trial]:
    """Measured runs of a configuration, of whatever stage."""
    return [t for t in study.of(config) if t.measurement is not None]


def paired(study: Study, compared: Comparison) -> list[PairedRuns]:
    """The pairs behind a configuration's speed-up, by cycle."""
    config = compared.config
    cycles = alike_cycles(study, Stage.CONFIRM, _BASE)
    found: list[PairedRuns] = []
    for cycle, log_ratio in sorted(compared.logs.items()):
        base, ours = cycles[cycle][_BASE].measurement, cycles[cycle][config].measurement
        if base is not None and ours is not None:
            found.append(
                PairedRuns(
                    cycle=cycle,
                    base=amortised(study, base),
                    ours=amortised(study, ours),
                    ratio=math.exp(log_ratio),
                )
            )
    return found


def step_quantiles(study: Study, config: Config) -> tuple[float, float, float, float, float] | None:
    """5, 25, 50, 75 and 95 % of a configuration's step times in seconds: medians over its runs.

    None where no run kept them.
    """
    seen = [t.measurement.extra for t in runs_of(study, config) if t.measurement is not None]
    kept = [[extra[name] for name in QUANTILES] for extra in seen if all(name in extra for name in QUANTILES)]
    if not kept:
        return None
    q05, q25, q50, q75, q95 = (statistics.median(column) for column in zip(*kept, strict=True))
    return q05, q25, q50, q75, q95


def traces(study: Study, config: Config, most: int) -> list[tuple[int, Sequence[LossPoint]]]:
    """(trial, loss trace) of at most so many runs of a configuration, the longest first."""
    runs = [
        (t.number, t.measurement.loss)
        for t in runs_of(study, config)
        if t.measurement is not None and t.measurement.loss
    ]
    return sorted(runs, key=lambda run: (-len(run[1]), run[0]))[:most]


def failed(study: Study) -> list[Trial]:
    """Failed trials in the order of trying, those that the user cancelled aside."""
    return [
        t for t in study.told() if t.failure is not None and t.failure.kind.family is not Family.CANCELLED
    ]


def log_tail(study: Study, trial: Trial) -> str:
    """The last lines that a failed trial wrote, without secrets."""
    if trial.failure is None:
        return ""
    text = str(trial.failure.evidence.get("log_tail", "")).strip("\n")
    lines = "\n".join(text.splitlines()[-_TAIL_LINES:])
    return clean(study, lines[-_TAIL_CHARACTERS:])


def advice(study: Study) -> list[Advice]:
    """What could be changed in the script's own code, without secrets; what buys most first."""
    return [
        replace(hint, file=clean(study, hint.file), text=clean(study, hint.text)) for hint in advice_of(study)
    ]


def effect_word(pick: Recommendation) -> str:
    """What a pick does to the training, in words."""
    return {
        "exact": "leaves the arithmetic as it is",
        "numeric": "rounds differently",
        "training": "changes the training",
    }[pick.effect.value]


def reasons(study: Study, answer: Answer) -> list[str]:
    """Why it is so, a sentence each."""
    best, held_back = answer.best, why.why_lines(study, answer)
    if not answer.is_better:
        said = [answer.sentence, summary.budget_hint(study), *held_back]
    else:
        waits = "" if held_back else summary.waits_text(study, best)
        said = [summary.gains_text(study, best), *held_back, waits, *summary.further_reasons(best)]
    return [clean(study, _begun(s)) for s in said if s]


def _begun(text: str) -> str:
    """As a sentence begins; a knob's name stays as it is spelled."""
    first = text.split(" ", maxsplit=1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first in {"your", "what", "with"} else text


def commands(study: Study, answer: Answer | None, repicked: Repicked | None, yaml: str) -> dict[str, str]:
    """What to type next, by what it does.

    Args:
        study: As it is.
        answer: Its answer.
        repicked: The wishes, where the picks are others than those of best.yaml.
        yaml: The file that holds these picks, where one was written.
    """
    label = shlex.quote(study.spec.label)
    found: dict[str, str] = {}
    if answer is not None and (answer.is_better or answer.fastest is not None):
        if repicked is not None and not yaml:
            found["write the file"] = write_command(repicked)
        out = shlex.quote(yaml or PICKED)
        for name, pick in shown_picks(answer).items():
            said = summary.apply_command(study, name)
            if repicked is not None:
                chosen = "" if name == "best" else f"--pick {name} "
                said = f"autotune apply {out} {chosen}-- {summary.user_command(study)}"
            key = "apply" if pick is answer.best else f"apply {name}"
            found[key] = said
            if key == "apply":
                found["verify"] = said.replace("autotune apply", "autotune verify", 1)
    if again := search_command(_as_searched(study, repicked)):
        found["search again"] = again
    if study.stopped not in ("", "finished"):
        found["go on"] = f"autotune resume {label}"
    found["look"] = f"autotune show {label} --trials"
    found["open in MLflow"] = f"autotune ui {label}"
    return {name: shown_command(text) for name, text in found.items()}


def _as_searched(study: Study, repicked: Repicked | None) -> Study:
    """With the bound that the search had, where the picks were made under another."""
    if repicked is None:
        return study
    return replace(study, spec=replace(study.spec, max_memory_bytes=repicked.own_max_bytes))


def write_command(repicked: Repicked) -> str:
    """What writes the picks of these wishes into a file."""
    return f"{wishes_command(repicked)} --yaml {PICKED}"


def wishes_command(repicked: Repicked) -> str:
    """`autotune report` with these wishes."""
    words = ["autotune", "report", repicked.study.spec.label]
    if repicked.wishes.objective:
        words += ["--objective", repicked.wishes.objective]
    if repicked.wishes.max_memory_bytes is not None:
        words += ["--max-memory", memory_text(repicked.wishes.max_memory_bytes)]
    return shlex.join(words)


def wall_text(seconds: float) -> str:
    """``2026-11-21 18:02 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def environment(study: Study) -> dict[str, str]:
    """What the figures hold for: machine, versions, script."""
    spec, facts = study.spec, study.facts
    found: dict[str, str] = {}
    if facts is not None:
        host = facts.host
        seen = (facts.run.devices if facts.run is not None else ()) or host.devices
        devices = ", ".join(f"{d.name} ({summary.bytes_text(d.memory_bytes)})" for d in seen)
        found["Device"] = devices or "none: training runs on the CPU"
        if drivers := sorted({d.driver for d in seen if d.driver}):
            found["Driver"] = ", ".join(drivers)
        cores = f"{host.cpus} CPUs ({host.physical_cores} physical cores)"
        found["CPU"] = ", ".join(filter(None, [host.cpu_model, cores]))
        found["Memory"] = summary.bytes_text(host.memory_bytes or None)
        found["Platform"] = ", ".join(filter(None, [host.platform, host.libc]))
        found["Python"] = host.python
        versions = {**host.versions, **(facts.run.versions if facts.run is not None else {})}
        found["Packages"] = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
        found["Script"] = (
            f"{spec.title}, sha256 {facts.script.sha256[:16]}" if facts.script.sha256 else spec.title
        )
    found["Git commit"] = spec.git_commit
    found["autotune"] = spec.version
    found["Study"] = f"{spec.label} ({spec.study_id})"
    found["Begun"] = wall_text(study.created)
    found["Budget"] = f"{summary.duration_text(spec.budget.seconds)}, driver {spec.driver}, seed {spec.seed}"
    found["Course"] = study.because
    found["Search space"] = summary.space_text(study) or spec.space.name
    found["Earlier studies"] = "; ".join(beliefs(study).told)
    found["Effective batch"] = spec.effective_batch
    told = {name: clean(study, text) for name, text in found.items() if text}
    return {"Command": shown_command(summary.user_command(study)), **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A study, its answer, and what is derived from both once for everything that is shown.

    Args:
        answer: None where the script was never measured as it is.
        compared: What confirmation compared, by configuration.
        tried: Every measured configuration.
        effects: What single runs let one expect of each knob.
        repicked: Where the picks were made anew under other wishes.
        yaml: The file that holds these picks, where one was written.
    """

    study: Study
    answer: Answer | None
    compared: Mapping[Config, Comparison]
    tried: Sequence[Tried]
    effects: Effects
    repicked: Repicked | None = None
    yaml: str = ""

    @classmethod
    def of(
        cls, study: Study, answer: Answer | None, *, repicked: Repicked | None = None, yaml: str = ""
    ) -> View:
        """Derive it all; with `repicked` its study and answer take the place of the others."""
        if repicked is not None:
            study, answer = repicked.study, repicked.answer
        compared = compare(study)
        return cls(
            study=study,
            answer=answer,
            compared={c.config: c for c in compared},
            tried=tried(study, compared),
            effects=estimated(study),
            repicked=repicked,
            yaml=yaml,
        )

    def pairs(self, config: Config) -> list[PairedRuns]:
        """The pairs behind a configuration's speed-up; empty where there are none."""
        found = self.compared.get(config)
        return paired(self.study, found) if found is not None else []


def headline(view: View, *, interval: bool = True) -> str:
    """The answer in one line; under other wishes it is said that it is theirs."""
    study, answer = view.study, view.answer
    if view.repicked is not None and answer is not None and not answer.is_better:
        title = summary.script_name(study)
        return clean(study, f"Nothing within these wishes is confirmed to be faster than {title}")
    return clean(study, summary.headline(study, answer, interval=interval))


def report_data(view: View) -> dict[str, Any]:
    """``autotune.report/v1``: everything the page shows, but for loss traces and log tails."""
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
            "trials": len(study.told()),
            "trials_failed": summary.failed_count(study),
        },
        "status": summary.status(study, answer),
        "headline": headline(view),
        "is_better": answer is not None and answer.is_better,
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
    data["trials"] = [_trial_data(study, t) for t in study.told()]
    if study.visits:
        data["live"] = _live_data(study)
    return data


def _live_data(study: Study) -> dict[str, Any]:
    """What running processes measured beside their own config, and whether that agrees with fresh ones.

    It has chosen what was run, and stands behind no claim.
    """
    return {
        "how": "segments of running processes, each against its own process; not confirmed",
        "seconds": rounded(math.fsum(t.visited.seconds for t in study.visits if t.visited is not None)),
        "segments": [
            {
                "trial": t.number,
                "source": o.source.value,
                "config": shown_config(o.config),
                "ratio": None if o.ratio is None else rounded(o.ratio.value),
                "low": None if o.ratio is None else rounded(o.ratio.low),
                "high": None if o.ratio is None else rounded(o.ratio.high),
                "seconds": rounded(o.seconds),
                **({"kind": o.failure} if o.failure else {}),
            }
            for t in study.visits
            if t.visited is not None
            for o in t.visited.observations
        ],
        "knobs": [
            {
                "knob": a.knob,
                "segments": a.segments,
                "pairs": len(a.pairs),
                "bias": None if a.bias is None else rounded(math.expm1(a.bias)),
                "rank_agreement": None if a.rank is None else rounded(a.rank),
                "is_live": a.is_live,
            }
            for a in agreements(study)
        ],
    }


def _answer_data(view: View, answer: Answer) -> dict[str, Any]:
    study, effects = view.study, view.effects
    return {
        **why.why_data(study, answer),
        "sentence": clean(study, answer.sentence),
        "caveats": [clean(study, c) for c in answer.caveats],
        "why": reasons(study, answer),
        "baseline": {
            "knobs": shown_config(summary.own_values(study)),
            "throughput": estimate_data(answer.baseline_throughput),
            "peak_bytes": answer.baseline_peak_bytes,
        },
        "control": None if answer.identical is None else estimate_data(answer.identical),
        "picks": {name: _pick_data(view, pick) for name, pick in picks(answer).items()},
        "front": [
            {
                "trial": m.trial,
                "config": shown_config(m.config),
                "throughput": rounded(m.throughput),
                "peak_bytes": m.peak_bytes,
                "loss": None if m.loss is None else rounded(m.loss),
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
                    "ratio": rounded(e.ratio),
                    "low": rounded(e.low),
                    "high": rounded(e.high),
                    "configs": e.configs,
                }
                for e in effects.values
            ],
            "interactions": [
                {
                    "knobs": list(e.knobs),
                    "ratio": rounded(e.ratio),
                    "low": rounded(e.low),
                    "high": rounded(e.high),
                    "configs": e.configs,
                }
                for e in effects.interactions
            ],
        },
    }


def bottlenecks(study: Study, answer: Answer) -> dict[str, Bottleneck]:
    """What holds the script back, and what the best pick; by ``script`` and ``best``."""
    named = (
        {"script": _BASE} if answer.best.config.is_baseline else {"script": _BASE, "best": answer.best.config}
    )
    return {name: bottleneck(study, config) for name, config in named.items()}


def _pick_data(view: View, pick: Recommendation) -> dict[str, Any]:
    study = view.study
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
        "contributions": [
            {
                "knob": knob,
                "gain": rounded(gain.value - 1.0),
                "low": rounded(gain.low - 1.0) if gain.n > 1 else None,
                "high": rounded(gain.high - 1.0) if gain.n > 1 else None,
                "n": gain.n,
                "how": "pairs" if gain.n > 1 else "single runs",
            }
            for knob, gain in summary.contributions(study, pick.config).items()
        ],
        "shares": [
            {
                "knobs": list(s.knobs),
                "ratio": rounded(s.ratio),
                "low": None if s.low is None else rounded(s.low),
                "high": None if s.high is None else rounded(s.high),
                "pairs": s.pairs,
                "how": s.how,
            }
            for s in summary.shares(study, pick.config)
        ],
        "reasons": [clean(study, r) for r in pick.reasons],
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
    if trial.start is not Start.COLD:
        row["start"] = trial.start.value
    if trial.measurement is not None:
        ratio = summary.speedup_of(study, trial)
        row["throughput"] = rounded(trial.measurement.throughput.value)
        row["peak_bytes"] = trial.measurement.memory.peak_bytes
        row["ratio"] = None if ratio is None else rounded(ratio.value)
    if trial.failure is not None:
        row["kind"] = trial.failure.kind.label
    return row


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """A figure with its interval, as best.yaml has it."""
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


def _measurements(trials: Sequence[Trial]) -> list[Measurement]:
    return [t.measurement for t in trials if t.measurement is not None]


def _loss_word(config: Config, trials: Sequence[Trial], compared: Comparison | None) -> str:
    if config.is_baseline:
        return "pass"
    if compared is not None:
        return compared.loss.verdict
    # Single runs are looked at for divergence alone; the guard judges finalists.
    bad = any(finite_and_sane(m.loss).verdict == "fail" for m in _measurements(trials) if m.loss)
    return "fail" if bad else "unclear"
