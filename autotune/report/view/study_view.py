"""Study data of a report: configurations, pairs, runs and failures, derived once.

Nothing is estimated here: claims come from the `Answer`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import amortised
from autotune.compare.comparison import compare
from autotune.compare.rounds import alike_cycles
from autotune.compare.value_effects import estimated
from autotune.loss.loss_guard import finite_and_sane
from autotune.model.config import Config
from autotune.model.trial import Family, Stage
from autotune.report.view import summary
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.compare.comparison import Comparison
    from autotune.compare.value_effects import Effects
    from autotune.model.measurement import LossPoint, Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.report.view.reselection import Repicked

QUANTILES: Final = ("step_s_p05", "step_s_p25", "step_s_p50", "step_s_p75", "step_s_p95")
"""Keys of the quantiles of step times in a measurement."""

_TAIL_LINES: Final = 24
_TAIL_CHARACTERS: Final = 2400
_BASE: Final = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A study, its answer, and everything derived from both for display.

    Args:
        answer: Answer; None if the unchanged script was never measured.
        compared: Comparisons of confirmation, by configuration.
        tried: Every measured configuration.
        effects: Effects of each knob, estimated from single runs.
        repicked: Reselection under other criteria, if any.
        yaml: File with these picks; empty if none was written.
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
        """Derive everything; the study and answer of `repicked` replace the others."""
        if repicked is not None:
            study, answer = repicked.study, repicked.answer
        compared = compare(study)
        return cls(
            study=study,
            answer=answer,
            compared={c.config: c for c in compared},
            tried=tried(study, compared),
            effects=_no_larger(estimated(study), answer),
            repicked=repicked,
            yaml=yaml,
        )

    def pairs(self, config: Config) -> list[PairedRuns]:
        """Return the pairs behind a configuration's speedup; empty without any."""
        found = self.compared.get(config)
        return paired(self.study, found) if found is not None else []


def headline(view: View, *, interval: bool = True) -> str:
    """Return the answer in one line; under other criteria, the line names them."""
    study, answer = view.study, view.answer
    if view.repicked is not None and answer is not None and not answer.is_better:
        title = summary.script_name(study)
        return clean(study, f"No configuration within these criteria is confirmed to be faster than {title}")
    return clean(study, summary.headline(study, answer, interval=interval))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One measured configuration.

    Args:
        trial: First trial that measured it.
        rate: Mean amortised throughput of all its runs.
        peak_bytes: Largest peak memory.
        runs: Number of runs.
        loss: ``pass``, ``fail``, or ``unclear`` if the guard has not judged it.
        is_confirmed: Whether it took part in confirmation.
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
    """One confirmation round: the script and a configuration in adjacent fresh processes.

    Args:
        ratio: Ratio of the pair, of throughput or of the time to equal loss.
    """

    cycle: int
    base: float
    ours: float
    ratio: float


def tried(study: Study, compared: Sequence[Comparison]) -> list[Tried]:
    """Return every measured configuration, in the order of trials.

    Args:
        study: Study to show.
        compared: Result of `autotune.answer.pick.compare`.
    """
    by_config: dict[Config, list[Trial]] = {}
    for trial in study.finished():
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
    """Return measured runs of a configuration in any stage."""
    return [t for t in study.of(config) if t.measurement is not None]


def paired(study: Study, compared: Comparison) -> list[PairedRuns]:
    """Return the pairs behind a configuration's speedup, by round."""
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
    """Return quantiles (5, 25, 50, 75, 95 %) of a configuration's step times in seconds, medians over runs.

    None if no run has them.
    """
    seen = [t.measurement.extra for t in runs_of(study, config) if t.measurement is not None]
    kept = [[extra[name] for name in QUANTILES] for extra in seen if all(name in extra for name in QUANTILES)]
    if not kept:
        return None
    q05, q25, q50, q75, q95 = (statistics.median(column) for column in zip(*kept, strict=True))
    return q05, q25, q50, q75, q95


def traces(study: Study, config: Config, most: int) -> list[tuple[int, Sequence[LossPoint]]]:
    """Return (trial, loss trace) of at most `most` runs of a configuration, the longest first."""
    runs = [
        (t.number, t.measurement.loss)
        for t in runs_of(study, config)
        if t.measurement is not None and t.measurement.loss
    ]
    return sorted(runs, key=lambda run: (-len(run[1]), run[0]))[:most]


def failed(study: Study) -> list[Trial]:
    """Return failed trials in order, without those that the user cancelled."""
    return [
        t for t in study.finished() if t.failure is not None and t.failure.kind.family is not Family.CANCELLED
    ]


def log_tail(study: Study, trial: Trial) -> str:
    """Return the last lines of a failed trial, without secrets."""
    if trial.failure is None:
        return ""
    text = str(trial.failure.evidence.get("log_tail", "")).strip("\n")
    lines = "\n".join(text.splitlines()[-_TAIL_LINES:])
    return clean(study, lines[-_TAIL_CHARACTERS:])


def _no_larger(effects: Effects, answer: Answer | None) -> Effects:
    """Return the effects without values whose estimate exceeds the claimed speedup."""
    if answer is None or not answer.is_better:
        return effects
    picks = [p for p in (answer.best, answer.safe, answer.fastest) if p is not None]
    most = max(pick.speedup.value for pick in picks)
    return replace(effects, values=tuple(e for e in effects.values if e.ratio.value <= most))


def _measurements(trials: Sequence[Trial]) -> list[Measurement]:
    return [t.measurement for t in trials if t.measurement is not None]


def _loss_word(config: Config, trials: Sequence[Trial], compared: Comparison | None) -> str:
    if config.is_baseline:
        return "pass"
    if compared is not None:
        return compared.loss.verdict
    # Single runs are checked for divergence alone; the guard judges finalists.
    bad = any(finite_and_sane(m.loss).verdict == "fail" for m in _measurements(trials) if m.loss)
    return "fail" if bad else "unclear"
