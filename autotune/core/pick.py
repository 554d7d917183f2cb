"""The picks of a study: which config is recommended, with what evidence. Pure; standard library only."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from autotune.core.ablation import ablated, gains, idle_knobs, reduced
from autotune.core.break_even import break_even, over_epochs
from autotune.core.broken import PAIRED, broken
from autotune.core.chances import FALSE_WINS, claim_interval, finalist_share, pairs_wanted
from autotune.core.config import Config, Value
from autotune.core.cycles import alike_cycles, disturbed_pairs, in_own_unit, own_unit
from autotune.core.disturbances import clocks_apart, is_crowded, left_out, marked_runs
from autotune.core.drift import drifted
from autotune.core.effect import Effect
from autotune.core.energy import counters, energy, samples_per_joule
from autotune.core.late_harm import barred, unshown
from autotune.core.learning_rate import learning_rate_advice
from autotune.core.loss_guard import (
    MOST_RUNS,
    LossVerdict,
    finite_and_sane,
    judge,
    scaler_skips,
    time_to_equal_loss,
)
from autotune.core.measurement import Estimate, LossPoint, Measurement
from autotune.core.memo import Memo, study_key
from autotune.core.objective import ENERGY, Goal
from autotune.core.pareto import front
from autotune.core.run_length import planned_steps
from autotune.core.stats import expected_gain, mean_interval, ratio_interval, sd
from autotune.core.study import SCRIPT_CHANGED, Study
from autotune.core.trial import Family, Stage, Trial
from autotune.errors import AutotuneError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One pick.

    Args:
        pick: ``safe``, ``best`` or ``fastest``.
        config: Changes relative to the script; empty where nothing beats the baseline.
        trial: Number of a trial that measured it (the baseline's where nothing is changed).
        effect: Strictest effect among its changes.
        speedup: Ratio to the baseline from confirmation pairs alone; n = pairs. 1.0 for the
            baseline itself.
        throughput: Of this config, over its confirmation runs.
        peak_bytes: Largest peak seen for it, None where unknown.
        loss: The guard's verdict.
        compile_s: Cold compile time, 0 where it does not compile.
        break_even_steps: Steps after which a cold compile has paid back, None where it never
            costs anything.
        pays_back_s: The same in seconds from the start of training, the compile included.
        run_s: What the planned run takes with the script as it is; None where its length is not known.
        reasons: Whole sentences.
        advice: What its learning rate might have to be; empty with the script's own effective batch.
    """

    pick: str
    config: Config
    trial: int
    effect: Effect
    speedup: Estimate
    throughput: Estimate
    peak_bytes: int | None
    loss: LossVerdict
    compile_s: float = 0.0
    break_even_steps: int | None = None
    pays_back_s: float | None = None
    run_s: float | None = None
    reasons: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMember:
    """A config that no other beats on throughput, peak memory and loss together."""

    trial: int
    config: Config
    throughput: float
    peak_bytes: int | None
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a study answers.

    Args:
        is_better: `best` beats the baseline: its lower bound is above 1.00, loss guard passed,
            and the A/A control does not exclude 1.00.
        baseline_throughput: Of the script as it is.
        baseline_peak_bytes: Its peak memory.
        safe, best: Always there; the baseline itself where nothing beats it.
        fastest: Only where it beats `best`.
        identical: The A/A control: baseline against baseline, None with too few runs.
        front: Pareto front, fastest first.
        failures: Failure label -> count.
        sentence: One line that says it all.
        caveats: Whole sentences: what weakens the claim, what was not reached.
    """

    is_better: bool
    baseline_throughput: Estimate
    baseline_peak_bytes: int | None
    safe: Recommendation
    best: Recommendation
    fastest: Recommendation | None
    identical: Estimate | None
    front: tuple[FrontMember, ...]
    failures: dict[str, int]
    sentence: str
    caveats: tuple[str, ...] = ()


FEWEST_PAIRS = 3
"""Pairs of confirmation runs below which nothing is claimed."""
_FEWEST_CONTROLS = 4
_TIE_FRAC = 0.02
_TIE_LOSS = 0.01
_SCREEN_NOISE = (0.02, 0.05)
_FASTEST_AHEAD = 1.05
_LEAST_SPREAD = 0.005
_TAU_SHARE = 0.5
_SWEEPS, _SETTLED = 50, 1e-9
_MEMORY_SLACK = 1.0
_UNJUDGED = LossVerdict(level=0, verdict="unclear", reason="The loss was not judged.")
_COMPARED: Memo[tuple[Comparison, ...]] = Memo()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One finalist against the baseline, from confirmation runs alone.

    Args:
        speedup: Ratio of amortised throughput, or of the time to equal loss for TRAINING configs;
            its interval is wide enough for the number of finalists and looks.
        is_early: Told from 1 at the level of a look before the last: confirmation may end with it.
        wanted_pairs: With which the gain would be claimed if it stays as it reads; None where no
            confirmation has as many.
        logs: ln ratio by cycle.
        loss: The guard's verdict; of level 2 for TRAINING configs.
        throughput: Of the config, over its confirmation runs.
        saving: Energy per sample of the script over its own, of the same pairs and with the same
            statistics; energy to equal loss for TRAINING configs. None where energy is not the objective, or
            it was not counted.
    """

    config: Config
    effect: Effect
    speedup: Estimate
    logs: Mapping[int, float]
    loss: LossVerdict
    throughput: Estimate
    peak_bytes: int | None
    trial: int
    saving: Estimate | None = None
    is_early: bool = False
    wanted_pairs: int | None = None

    @property
    def wins(self) -> bool:
        """Faster than the baseline beyond doubt: enough pairs, lower bound above 1.00."""
        return self.speedup.n >= FEWEST_PAIRS and self.speedup.low > 1.0


def answer_or_none(study: Study) -> Answer | None:
    """`answer`, or None as long as no baseline run was measured."""
    return answer(study) if _baseline_runs(study) else None


def answer(study: Study) -> Answer:
    """What the study says now; claims rest on confirmation runs alone.

    A gain is claimed where the lower bound of a paired interval lies above 1.00, the loss guard
    passed, and the baseline does not differ from itself in the same cycles. Among configs that are
    equally fast the one with less memory wins, then the one with fewer changes.

    Raises:
        AutotuneError: No baseline run was measured; ask `answer_or_none` where that can be.
    """
    runs = _baseline_runs(study)
    if not runs:
        message = "there is no answer before the baseline was measured"
        raise AutotuneError(message, hint="run `autotune doctor` and report this")
    compared = compare(study)
    identical = control(study)
    bar = claim_bar(identical)
    base = _baseline_pick(study, runs)
    winners = [c for c in compared if c.wins and c.speedup.low > bar and _lawful(study, c)]
    winners = [c for c in winners if _saves(study, c)]
    choose = _most_saving if study.spec.objective == ENERGY else _choose
    whole = ablated(study)
    if whole is not None and all(c.config != whole for c in winners):
        winners = [c for c in winners if c.config not in late_members(study)]
    tame = [c for c in winners if c.effect is not Effect.TRAINING]
    safe = choose([c for c in tame if c.effect is Effect.EXACT])
    best = choose(tame)
    fastest = _fastest(winners, best)
    picks = {
        "safe": _recommend(study, "safe", safe) if safe else replace(base, pick="safe"),
        "best": _recommend(study, "best", best) if best else replace(base, pick="best"),
    }
    rest = [c for c in compared if c not in winners]
    return Answer(
        is_better=best is not None,
        baseline_throughput=base.throughput,
        baseline_peak_bytes=base.peak_bytes,
        safe=picks["safe"],
        best=picks["best"],
        fastest=_recommend(study, "fastest", fastest) if fastest else None,
        identical=identical,
        front=_front(study),
        failures=_failures(study),
        sentence=_sentence(study, picks["best"], fastest, compared, bar),
        caveats=(
            *_caveats(study, rest, identical, bar),
            *_seen_from_outside(study, [c for c in (best, safe, fastest) if c is not None] or compared),
        ),
    )


def finalists(
    study: Study,
    *,
    out: frozenset[Config] = frozenset(),
    rates: Mapping[Config, float] | None = None,
    simpler: Literal["beside", "instead", "none"] = "beside",
) -> tuple[Config, ...]:
    """Configs that deserve confirmation by their screening runs, best first.

    The fastest config that leaves the training as it is; the fastest EXACT one where that is
    another; the fastest that changes the training where it is clearly faster still; last, what has a
    part of the changes of the first and is as fast within the noise. Which of these two is recommended is
    for pairs to say: single runs differ by several per cent where nothing differs. None of them
    is slower than the baseline in screening. The order and choice depend on screening runs and on failures
    only, so they stay as they are while confirmation goes on.

    Args:
        study: As of now.
        out: Configs that confirmation has ruled out; the next best take their places.
        rates: What to rank by in place of the raw screening means. The largest of many noisy figures
            is the luckiest as much as the best, so a search gives what its model makes of them.
        simpler: What becomes of the simpler one that is as fast: it is confirmed beside the first, takes
            the place of each before any pair was run, or is left to the caller.
    """
    ranked = merits(study) if rates is None else rates
    base = ranked.get(Config())
    if base is None or study.space is None:
        return ()
    space = study.space
    lost = out | broken(study).keys() | _not_faster(study)
    fast = {
        config: rate
        for config, rate in ranked.items()
        if rate > base and config not in lost and not config.is_baseline and may_win(study, config)
    }
    noise = _screen_noise(study)
    pick = partial(_simplest, noise=noise if simpler == "instead" else 0.0)
    tame = {c: r for c, r in fast.items() if space.effect(c) is not Effect.TRAINING}
    exact = {c: r for c, r in tame.items() if space.effect(c) is Effect.EXACT}
    chosen: list[Config] = []
    for pool in (tame, exact):
        config = pick(pool)
        if config is not None and config not in chosen:
            chosen.append(config)
    wild = {c: r for c, r in fast.items() if c not in tame}
    boldest = pick(wild)
    top = fast[chosen[0]] if chosen else base
    if boldest is not None and wild[boldest] > _FASTEST_AHEAD * top:
        chosen.append(boldest)
    twin = _simplest(tame, noise) if simpler == "beside" else None
    if twin is not None and twin not in chosen:
        chosen.append(twin)
    return tuple(chosen)


def screened(study: Study) -> dict[Config, float]:
    """Mean amortised throughput by config, from baseline and screening runs."""
    rates: dict[Config, list[float]] = {}
    told = study.told(Stage.BASELINE, Stage.START, Stage.REFINE, Stage.SENTINEL)
    for trial in in_own_unit(study, told):
        if trial.measurement is not None:
            rates.setdefault(trial.config, []).append(amortised(study, trial.measurement))
    return {config: statistics.fmean(values) for config, values in rates.items()}


def merits(study: Study) -> dict[Config, float]:
    """What a search ranks by: `screened`, or samples per joule where energy is its objective."""
    return {config: statistics.fmean(values) for config, values in merit_runs(study).items()}


def merit_runs(study: Study) -> dict[Config, tuple[float, ...]]:
    """The same, run by run, in the order in which they were asked for."""
    found: dict[Config, list[float]] = {}
    told = in_own_unit(study, study.told(Stage.BASELINE, Stage.START, Stage.REFINE, Stage.SENTINEL))
    is_energy = study.spec.objective == ENERGY
    runs = [(t.config, t.measurement) for t in told if t.measurement is not None]
    # All runs of a config pay its longest compile, as what ran once does: a full cache is no gain.
    longest: dict[Config, Measurement] = {}
    for config, m in runs:
        longest[config] = max(longest.get(config, m), m, key=lambda one: one.all_compile_s)
    for config, m in runs:
        most = longest[config]
        alike = m
        if m.all_compile_s != most.all_compile_s:
            alike = replace(m, compile_s=most.compile_s, late_compile_s=most.late_compile_s)
        value = samples_per_joule(m) if is_energy else amortised(study, alike)
        if value is not None:
            found.setdefault(config, []).append(value)
    return {config: tuple(values) for config, values in found.items()}


def merit(study: Study, measurement: Measurement) -> float:
    """The same of one run; 0 where nothing counted its energy."""
    if study.spec.objective != ENERGY:
        return amortised(study, measurement)
    return samples_per_joule(measurement) or 0.0


def _not_faster(study: Study) -> set[Config]:
    """What the least energy would not make a pick of, since it read no faster than the script."""
    if study.spec.objective != ENERGY:
        return set()
    rates = screened(study)
    return {config for config, rate in rates.items() if rate <= rates.get(_BASE, 0.0)}


def amortised(study: Study, measurement: Measurement) -> float:
    """Samples per second over the planned run, whose length in samples is the same for every config."""
    steps = planned_steps(study)
    # To look for the script's own batch is to go through all runs, and a search asks this of each of them.
    own = _own_batch(study) if steps else 0.0
    if steps and own and measurement.effective_batch > 0:
        steps = max(1, round(steps * own / measurement.effective_batch))
    return measurement.amortised(steps) * over_epochs(study, measurement)


def compare(study: Study) -> list[Comparison]:
    """Every confirmed config against the baseline, in the order they were first confirmed."""
    return list(_COMPARED.get(study_key(study), lambda: tuple(_compared(study))))


def _compared(study: Study) -> list[Comparison]:
    space, cycles = study.space, _cycles(study)
    members = [c for c in dict.fromkeys(t.config for t in study.told(Stage.CONFIRM)) if not c.is_baseline]
    rates = {
        g: {c: amortised(study, t.measurement) for c, t in runs.items() if t.measurement}
        for g, runs in cycles.items()
    }
    logs = {
        c: {
            g: math.log(r[c] / r[_BASE])
            for g, r in rates.items()
            if c in r and _BASE in r and min(r[c], r[_BASE]) > 0
        }
        for c in members
    }
    spread, df = _pooled_spread(rates)
    floor = max(_LEAST_SPREAD, _TAU_SHARE * _successive(rates))
    # What an ablation left is tested only where its winner has won, which costs no further chance.
    whole = ablated(study)
    first = [c for c in members if c not in late_members(study)]
    shares = {c: finalist_share(place, len(first)) for place, c in enumerate(first)}
    spent = _spent(study, cycles)
    found: list[Comparison] = []
    for config in members:
        if not logs[config]:
            continue
        effect = space.effect(config) if space is not None else Effect.TRAINING
        values = logs[config]
        if effect is Effect.TRAINING:
            later = _time_logs(config, cycles, rates)
            loss = _level_two(later)
            values = later or values
        else:
            loss = loss_verdict(study, config)
        own_df = len(values) - 1
        share = shares.get(config if whole is None or config in shares else whole, min(shares.values()))
        pairs, tau, freedom = list(values.values()), max(floor, spread), max(own_df, df) if df else None
        speedup, is_early = claim_interval(pairs, share, tau=tau, df=freedom)
        saved = _saving(config, effect, cycles, spent, share)
        found.append(
            Comparison(
                config=config,
                effect=effect,
                speedup=speedup,
                is_early=is_early and (saved is None or saved[1]),
                wanted_pairs=pairs_wanted(pairs, share, tau=tau, df=freedom, most=MOST_RUNS),
                logs=values,
                loss=_by_rule(study, config, loss),
                throughput=_mean_rate([r[config] for r in rates.values() if config in r], _unit(study)),
                peak_bytes=_peak(study, config),
                trial=next(t.number for t in study.told() if t.config == config and t.measurement),
                saving=None if saved is None else saved[0],
            )
        )
    return found


def _spent(study: Study, cycles: Mapping[int, Mapping[Config, Trial]]) -> dict[int, dict[Config, float]]:
    """Samples per joule by cycle, of runs that were counted like the script's; empty for other objectives."""
    found: dict[int, dict[Config, float]] = {}
    for group, runs in cycles.items() if study.spec.objective == ENERGY else ():
        base = runs[_BASE].measurement if _BASE in runs else None
        if base is None:
            continue
        measured = {c: t.measurement for c, t in runs.items() if t.measurement}
        alike = {c: m for c, m in measured.items() if counters(m) == counters(base)}
        found[group] = {c: value for c, m in alike.items() if (value := samples_per_joule(m)) is not None}
    return found


def _saving(
    config: Config,
    effect: Effect,
    cycles: Mapping[int, Mapping[Config, Trial]],
    spent: Mapping[int, Mapping[Config, float]],
    share: float,
) -> tuple[Estimate, bool] | None:
    """Energy per sample of the script over a config's, compared as speed is; None without a counter."""
    both = {g: s for g, s in spent.items() if config in s and _BASE in s}
    logs: Mapping[int, float] | None = {g: math.log(s[config] / s[_BASE]) for g, s in both.items()}
    if effect is Effect.TRAINING:
        logs = _time_logs(config, {g: cycles[g] for g in both}, both)
    if not logs:
        return None
    spread, df = _pooled_spread(spent)
    return claim_interval(
        list(logs.values()),
        share,
        tau=max(_LEAST_SPREAD, _TAU_SHARE * _successive(spent), spread),
        df=max(len(logs) - 1, df) if df else None,
    )


def _saves(study: Study, compared: Comparison) -> bool:
    """It takes less energy per sample beyond doubt, where that is what is searched for."""
    if study.spec.objective != ENERGY:
        return True
    saving = compared.saving
    if saving is None or saving.n < FEWEST_PAIRS:
        return False
    spent = _spent(study, _cycles(study))
    own = [spent[g][_BASE] for g in sorted(spent) if _BASE in spent[g]]
    return saving.low > claim_bar(_against_itself(own))


def _most_saving(pool: Sequence[Comparison]) -> Comparison | None:
    """The least energy; of those within a tie the one with the fewest changes."""
    savings = {c.config: c.saving.value for c in pool if c.saving is not None}
    if not savings:
        return None
    top = max(savings.values())
    tied = [c for c in pool if savings.get(c.config, 0.0) >= (1.0 - _TIE_FRAC) * top]
    return min(tied, key=lambda c: (len(c.config), -savings[c.config]))


def late_members(study: Study) -> frozenset[Config]:
    """Configs that were confirmed only after an ablation had found them: parts of the winner taken apart.

    What comes in then for a finalist that was ruled out is one more chance, and none of them; so is a part
    of a winner that failed since, which is no winner any more.
    """
    whole = ablated(study)
    if whole is None or whole in broken(study):
        return frozenset()
    early: set[Config] = set()
    late: set[Config] = set()
    began = False
    for trial in study.trials:
        began = began or trial.stage is Stage.ABLATE
        if trial.stage is Stage.CONFIRM and not trial.config.is_baseline:
            (late if began else early).add(trial.config)
    return frozenset(c for c in late - early if _sampled(study, c) < _sampled(study, whole))


def _sampled(study: Study, config: Config) -> set[tuple[str, Value]]:
    """Its changes without those that follow from others, which differ between a winner and a part of it."""
    dimensions = () if study.space is None else study.space.dimensions.values()
    follows = {d.knob for d in dimensions if d.derived}
    return {(knob, value) for knob, value in config.items() if knob not in follows}


def knob_gains(study: Study) -> dict[str, Estimate]:
    """Knob -> how much faster the ablated winner is with it than without, largest first."""
    return gains(study, amortised)


def without_idle(study: Study) -> Config | None:
    """The ablated winner without the knobs that buy nothing; None where all buy something."""
    return reduced(study, amortised)


def control(study: Study) -> Estimate | None:
    """The baseline against itself: consecutive confirmation runs paired; None with fewer than four."""
    cycles = _cycles(study)
    runs = [cycles[g][_BASE] for g in sorted(cycles) if _BASE in cycles[g]]
    return _against_itself([amortised(study, t.measurement) for t in runs if t.measurement])


def _against_itself(rates: Sequence[float]) -> Estimate | None:
    """Consecutive runs of one config in turning order; None with fewer than four, or without a rate."""
    if len(rates) < _FEWEST_CONTROLS or min(rates) <= 0:
        return None
    logs: list[float] = []
    for index in range(0, len(rates) - 1, 2):
        sign = 1.0 if index % 4 == 0 else -1.0
        logs.append(sign * math.log(rates[index + 1] / rates[index]))
    return ratio_interval(logs, confidence=1.0 - FALSE_WINS, tau=_LEAST_SPREAD)


def claim_bar(identical: Estimate | None) -> float:
    """What a lower bound has to clear: 1.00, or what the script was seen to differ from itself by.

    Args:
        identical: Of `control`.
    """
    if identical is None or identical.n < FEWEST_PAIRS or identical.low <= 1.0 <= identical.high:
        return 1.0
    return max(identical.high, 1.0 / identical.low) if identical.low > 0 else math.inf


def loss_verdict(study: Study, config: Config) -> LossVerdict:
    """The guard on a config: level 0 for EXACT ones, level 1 for what changes the numbers.

    An EXACT config is held to level 1 as well where the runs show it worse beyond doubt: then it
    was not exact.
    """
    runs, own = ([t.measurement for t in study.of(c) if t.measurement] for c in (config, _BASE))
    skipping = scaler_skips(runs, own)
    if skipping is not None:
        return skipping
    space = study.space
    candidate, baseline = _traces(study, config), _traces(study, _BASE)
    if not baseline:
        seen = [finite_and_sane(t) for t in candidate.values()]
        bad = next((v for v in seen if v.verdict == "fail"), None)
        return bad or LossVerdict(level=0, verdict="unclear", reason="The script shows no loss.")
    effect = space.effect(config) if space is not None else Effect.TRAINING
    redeals = space.redeals(config) if space is not None else True
    verdict = judge(candidate, baseline, redeals=redeals, effective_batch=_own_batch(study))
    if not candidate and sum(1 for t in study.of(config) if t.measurement) >= FEWEST_PAIRS:
        verdict = replace(verdict, can_clear=False)
    if effect is not Effect.EXACT or verdict.verdict != "unclear":
        return verdict
    levels = [finite_and_sane(t) for t in candidate.values()]
    return next((v for v in levels if not v.passed), levels[0]) if levels else _UNJUDGED


def trace_steps(study: Study) -> int:
    """Optimizer steps over which all first runs of the script showed its loss, as a comparison will do."""
    traces = [t.measurement.loss for t in study.baseline if t.measurement and t.measurement.loss]
    return round(min((t[-1].samples for t in traces), default=0) / (_own_batch(study) or 1.0))


def _by_rule(study: Study, config: Config, loss: LossVerdict) -> LossVerdict:
    """What has not failed on a trace that could not have shown the harm is not shown either."""
    if loss.verdict == "fail":
        return loss
    found = barred(study, config, _judged_steps(study, config, loss))
    if found is None:
        return loss
    return replace(loss, verdict="unclear", can_clear=False, reason=found.sentence, rule=found.knob)


def _judged_steps(study: Study, config: Config, loss: LossVerdict) -> int:
    if loss.level == 1 and loss.steps:
        return loss.steps
    runs = [t.measurement for t in study.of(config, Stage.CONFIRM) if t.measurement and t.measurement.loss]
    return round(min((m.loss[-1].samples for m in runs), default=0) / (_own_batch(study) or 1.0))


_BASE = Config()


def _lawful(study: Study, compared: Comparison) -> bool:
    """Its runs, loss and memory let it be recommended."""
    if compared.config in broken(study):
        return False
    if not _fits(study, compared.peak_bytes) or not _is_frugal(study, compared.config):
        return False
    if _late(study, compared):
        return False
    if compared.loss.passed:
        return True
    blind = not _traces(study, _BASE)
    unclear = compared.loss.verdict == "unclear" and not compared.loss.rule
    return blind and compared.effect is Effect.EXACT and unclear


def _broke(study: Study, config: Config) -> str:
    """How a run failed after which it is no answer: the end of a sentence."""
    trial = broken(study).get(config)
    if trial is None or trial.failure is None:
        return ""
    if trial.failure.kind.family is Family.DIVERGED:
        return f"its loss became no number in trial {trial.number}"
    runs = len(study.of(config, *PAIRED))
    return f"trial {trial.number}, one of its {runs} runs in pairs, failed ({trial.failure.kind.label})"


def _late(study: Study, compared: Comparison) -> str:
    """Where its compile has not paid back by the end of the planned run: the end of a sentence."""
    paid = None if compared.effect is Effect.TRAINING else break_even(study, compared.config)
    if paid is None or not paid.is_late or paid.run_s is None:
        return ""
    back = "never pays back" if paid.seconds is None else f"pays back after {_time(paid.seconds)}"
    return f"its compile of {_time(paid.compile_s)} {back}, and your run is about {_time(paid.run_s)}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _fits(study: Study, peak_bytes: int | None) -> bool:
    bounds = [c.at_most for c in study.spec.constraints if c.metric == "peak_memory"]
    if study.spec.max_memory_bytes is not None:
        bounds.append(float(study.spec.max_memory_bytes))
    return peak_bytes is None or all(peak_bytes <= bound * _MEMORY_SLACK for bound in bounds)


def _is_frugal(study: Study, config: Config) -> bool:
    """Within the bounds on energy; what nothing counted is not."""
    bounds = [c.at_most for c in study.spec.constraints if c.metric == "joules_per_sample"]
    if not bounds:
        return True
    own, used = energy(study, _BASE), energy(study, config)
    # With other counters than the script's it would only look frugal.
    counted = own is not None and used is not None and used.of == own.of
    return counted and used is not None and used.joules_per_sample <= min(bounds)


def may_win(study: Study, config: Config) -> bool:
    """Nothing seen so far rules out that it is recommended."""
    if not _fits_and_is_sane(study, config):
        return False
    if barred(study, config, trace_steps(study)) is not None:
        return False
    # Without a loss no confirmation, however long, can show that anything but an EXACT config learns as well.
    is_exact = study.space is not None and study.space.effect(config) is Effect.EXACT
    return is_exact or bool(_traces(study, _BASE))


def _fits_and_is_sane(study: Study, config: Config) -> bool:
    if not _fits(study, _peak(study, config)):
        return False
    return all(
        finite_and_sane(t.measurement.loss).verdict != "fail"
        for t in study.of(config, Stage.START, Stage.REFINE)
        if t.measurement
    )


def fastest_fitting(study: Study) -> Config | None:
    """What read fastest in screening among all that keeps to the memory bound, the script itself aside."""
    rates = {c: r for c, r in screened(study).items() if not c.is_baseline and _fits_and_is_sane(study, c)}
    return max(rates, key=lambda c: (rates[c], c.canonical()), default=None)


def _choose(pool: Sequence[Comparison]) -> Comparison | None:
    if not pool:
        return None
    top = max(pool, key=lambda c: c.speedup.value)
    tied = [c for c in pool if c is top or _ties(c, top)]
    sizes = [c.peak_bytes for c in tied if c.peak_bytes is not None]
    smallest = min(sizes, default=0)

    def rank(c: Comparison) -> tuple[int, int, float]:
        more = 0 if c.peak_bytes is None or len(sizes) < len(tied) or c.peak_bytes <= 1.02 * smallest else 1
        return more, len(c.config), -c.speedup.value

    return min(tied, key=rank)


def _ties(other: Comparison, top: Comparison) -> bool:
    """Within 2 %, not told apart by their own pairs, and little is expected to be lost by taking it.

    Where pairs scatter by ten per cent, eight of them leave two configs within 2 % of one another that
    differ by twice as much: nothing is as fast only because nobody can tell.
    """
    if other.speedup.value < (1.0 - _TIE_FRAC) * top.speedup.value:
        return False
    shared = [top.logs[g] - other.logs[g] for g in top.logs if g in other.logs]
    if len(shared) < 2:
        return other.speedup.value >= (1.0 - _TIE_LOSS) * top.speedup.value
    if ratio_interval(shared, tau=_LEAST_SPREAD).low > 1.0:
        return False
    mean, error = statistics.fmean(shared), max(sd(shared), _LEAST_SPREAD) / math.sqrt(len(shared))
    return expected_gain(mean, error) <= _TIE_LOSS


def _fastest(winners: Sequence[Comparison], best: Comparison | None) -> Comparison | None:
    wild = [c for c in winners if c.effect is Effect.TRAINING]
    top = max(wild, key=lambda c: c.speedup.value, default=None)
    if top is None or best is None:
        return top
    ahead = [top.logs[g] - best.logs[g] for g in top.logs if g in best.logs]
    if len(ahead) < FEWEST_PAIRS:
        return None
    return top if ratio_interval(ahead, tau=_LEAST_SPREAD).low > 1.0 else None


def _level_two(logs: Mapping[int, float] | None) -> LossVerdict:
    if logs is None:
        return LossVerdict(
            level=2,
            verdict="unclear",
            # One run that never gets there bars it for good.
            can_clear=False,
            reason="It did not reach the baseline's loss within its runs, so no time to equal loss is known.",
        )
    enough = len(logs) >= FEWEST_PAIRS
    ratio = math.exp(statistics.fmean(logs.values()))
    return LossVerdict(
        level=2,
        verdict="pass" if enough else "unclear",
        reason=f"It reaches the baseline's loss {ratio:.2f} times as fast, {len(logs)} pairs.",
    )


def _time_logs(
    config: Config,
    cycles: Mapping[int, Mapping[Config, Trial]],
    rates: Mapping[int, Mapping[Config, float]],
) -> dict[int, float] | None:
    """Logarithm of the time to equal loss, by cycle; None where a run never got there or nothing is seen."""
    logs: dict[int, float] = {}
    for group, runs in cycles.items():
        ours, theirs = runs.get(config), runs.get(_BASE)
        if ours is None or theirs is None or ours.measurement is None or theirs.measurement is None:
            continue
        ratio = time_to_equal_loss(
            {0: ours.measurement.loss},
            {0: theirs.measurement.loss},
            candidate_rate={0: rates[group][config] * _samples_per_count(ours.measurement)},
            baseline_rate={0: rates[group][_BASE] * _samples_per_count(theirs.measurement)},
        )
        if ratio is None or ratio.value <= 0:
            return None
        logs[group] = math.log(ratio.value)
    return logs or None


def _samples_per_count(measurement: Measurement) -> float:
    """Samples in what its throughput counts one by one: points of a loss are placed by samples."""
    by_steps = measurement.throughput.unit == "steps/s" and measurement.effective_batch > 0
    return measurement.effective_batch if by_steps else 1.0


def _cycles(study: Study) -> dict[int, dict[Config, Trial]]:
    return alike_cycles(study, Stage.CONFIRM, _BASE)


def _pooled_spread(rates: Mapping[int, Mapping[Config, float]]) -> tuple[float, float]:
    """Standard deviation of a log ratio pooled over all members, and its degrees of freedom.

    Residuals of log rate = cycle + config, by least squares: what the order and the drift of the machine do
    to a whole cycle drops out. Who came late or left early counts with the cycles it was in.
    """
    logs = {
        (g, c): math.log(rate)
        for g, r in rates.items()
        if len(r) > 1 and r.get(_BASE, 0.0) > 0.0
        for c, rate in r.items()
        if rate > 0.0
    }
    cycles, members = {g for g, _ in logs}, {c for _, c in logs}
    df = len(logs) - len(cycles) - len(members) + 1
    if len(members) < 3 or df < 2:
        return 0.0, 0.0
    in_cycle = {g: [(c, y) for (h, c), y in logs.items() if h == g] for g in cycles}
    of_config = {c: [(g, y) for (g, d), y in logs.items() if d == c] for c in members}
    by_config = dict.fromkeys(members, 0.0)
    by_cycle: dict[int, float] = {}
    for _ in range(_SWEEPS):
        before = by_config
        by_cycle = {g: statistics.fmean(y - by_config[c] for c, y in runs) for g, runs in in_cycle.items()}
        by_config = {c: statistics.fmean(y - by_cycle[g] for g, y in runs) for c, runs in of_config.items()}
        if max(abs(by_config[c] - before[c]) for c in members) < _SETTLED:
            break
    squares = math.fsum((y - by_cycle[g] - by_config[c]) ** 2 for (g, c), y in logs.items())
    return math.sqrt(2.0 * squares / df), float(df)


def _successive(rates: Mapping[int, Mapping[Config, float]]) -> float:
    """Root mean square of ln ratios of consecutive baseline runs: their spread without slow drift."""
    base = [rates[g][_BASE] for g in sorted(rates) if _BASE in rates[g] and rates[g][_BASE] > 0]
    steps = [math.log(b / a) for a, b in itertools.pairwise(base)]
    return math.sqrt(statistics.fmean(s * s for s in steps)) if steps else 0.0


def _screen_noise(study: Study) -> float:
    rates = [amortised(study, t.measurement) for t in study.baseline if t.measurement]
    low, high = _SCREEN_NOISE
    if len(rates) < 2 or min(rates) <= 0:
        return low
    return min(high, max(low, sd([math.log(r) for r in rates])))


def _simplest(rates: Mapping[Config, float], noise: float) -> Config | None:
    """The fastest, or a part of its changes that is as fast within the noise."""
    if not rates:
        return None
    top = max(rates, key=lambda c: (rates[c], -len(c), c.canonical()))
    parts = [
        c for c, r in rates.items() if set(c.items()) <= set(top.items()) and r >= (1.0 - noise) * rates[top]
    ]
    return min(parts, key=lambda c: (len(c), -rates[c], c.canonical()))


def _baseline_runs(study: Study) -> list[Trial]:
    return [t for t in in_own_unit(study, study.told()) if t.config.is_baseline]


def _own_batch(study: Study) -> float:
    for trial in _baseline_runs(study):
        if trial.measurement and trial.measurement.effective_batch > 0:
            return trial.measurement.effective_batch
    return 0.0


def _traces(study: Study, config: Config) -> dict[int, Sequence[LossPoint]]:
    """Loss by seed; of several runs with one seed the longest trace."""
    found: dict[int, Sequence[LossPoint]] = {}
    for trial in study.of(config):
        trace = trial.measurement.loss if trial.measurement else ()
        if trace and (trial.seed not in found or trace[-1].samples > found[trial.seed][-1].samples):
            found[trial.seed] = trace
    return found


def _peak(study: Study, config: Config) -> int | None:
    peaks = [t.measurement.memory.peak_bytes for t in study.of(config) if t.measurement]
    return max((p for p in peaks if p is not None), default=None)


def _unit(study: Study) -> str:
    return own_unit(study) or "samples/s"


def _mean_rate(rates: Sequence[float], unit: str) -> Estimate:
    mean, low, high = mean_interval(rates)
    return Estimate(value=mean, low=max(0.0, low), high=high, n=len(rates), unit=unit)


def _baseline_pick(study: Study, runs: Sequence[Trial]) -> Recommendation:
    confirmed = [t for t in runs if t.stage is Stage.CONFIRM] or list(runs)
    rates = [amortised(study, t.measurement) for t in confirmed if t.measurement]
    pairs = len(confirmed) if confirmed[0].stage is Stage.CONFIRM else 0
    return Recommendation(
        pick="best",
        config=_BASE,
        trial=runs[0].number,
        effect=Effect.EXACT,
        speedup=Estimate(value=1.0, low=1.0, high=1.0, n=pairs, unit="ratio"),
        throughput=_mean_rate(rates, _unit(study)),
        peak_bytes=_peak(study, _BASE),
        loss=LossVerdict(level=0, verdict="pass", reason="This is your script as it is."),
        reasons=("Nothing that was tried is faster beyond doubt, so your script stays as it is.",),
    )


def _recommend(study: Study, pick: str, chosen: Comparison) -> Recommendation:
    runs = [t.measurement for t in study.of(chosen.config) if t.measurement]
    compile_s = max((m.all_compile_s for m in runs), default=0.0)
    paid = break_even(study, chosen.config)
    return Recommendation(
        pick=pick,
        config=chosen.config,
        trial=chosen.trial,
        effect=chosen.effect,
        speedup=chosen.speedup,
        throughput=chosen.throughput,
        peak_bytes=chosen.peak_bytes,
        loss=chosen.loss,
        compile_s=compile_s if paid is None else paid.compile_s,
        break_even_steps=paid.steps if paid is not None else None,
        pays_back_s=paid.seconds if paid is not None else None,
        run_s=paid.run_s if paid is not None else None,
        reasons=tuple(_reasons(study, chosen)),
        advice=learning_rate_advice(study, chosen.config),
    )


def _reasons(study: Study, chosen: Comparison) -> list[str]:
    speedup = chosen.speedup
    what = "reaches the same loss" if chosen.effect is Effect.TRAINING else "trains"
    steps = _judged_steps(study, chosen.config, chosen.loss)
    reasons = [
        f"It {what} {_ratio(speedup)} times as fast, in {speedup.n} pairs of fresh runs.",
        *_saving_told(chosen),
        chosen.loss.reason,
        *(found.sentence for found in unshown(study, chosen.config, steps)),
    ]
    base = _peak(study, _BASE)
    if chosen.peak_bytes is not None and base:
        reasons.append(f"Its peak memory is {chosen.peak_bytes / base:.2f} times that of your script.")
    space = study.spec.space
    if chosen.effect is Effect.TRAINING:
        named = [k for k in chosen.config if k in space.allowed or k == "effective_batch"]
        wild = [k for k in named if not study.space or study.space.effect(Config({k: 0})) is Effect.TRAINING]
        said = ", ".join(wild).replace("_", " ") or "the effective batch or what depends on it"
        reasons.append(f"It changes the training itself: {said}.")
    if own := [spec.name for spec in space.declared if spec.name in chosen.config]:
        reasons.append(f"{', '.join(own)}: delivered, effect not read.")
    reasons += _taken_out(study, chosen.config)
    return [r for r in reasons if r]


def _saving_told(chosen: Comparison) -> list[str]:
    """Its energy per sample over the script's, where that is what was searched for."""
    saving = chosen.saving
    if saving is None or min(saving.low, saving.value) <= 0:
        return []
    value, low, high = 1.0 / saving.value, 1.0 / saving.high, 1.0 / saving.low
    ratio = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return [f"It takes {ratio} times your script's energy per sample, in {saving.n} pairs."]


def _energy_caveat(study: Study) -> list[str]:
    if study.spec.objective != ENERGY or energy(study, _BASE) is not None:
        return []
    return ["No energy was counted for your script, so nothing can be picked by it."]


def _taken_out(study: Study, config: Config) -> list[str]:
    """What the ablation showed to buy nothing, said of the config that is left."""
    if config != without_idle(study):
        return []
    found = knob_gains(study)
    told = ", ".join(f"{knob} ({_ratio(found[knob])})" for knob in idle_knobs(found))
    return [f"Taken out because it buys nothing measurable: {told}."]


def _ratio(speedup: Estimate) -> str:
    return f"{speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]"


def _sentence(
    study: Study,
    best: Recommendation,
    fastest: Comparison | None,
    compared: Sequence[Comparison],
    bar: float,
) -> str:
    if not best.config.is_baseline:
        ratio = f"{_ratio(best.speedup)} times as fast as your script"
        others = ", beside others who used the machine" if is_crowded(study, best.config) else ""
        return f"{best.config.text()} is {ratio}, {best.speedup.n} pairs{others}."
    if not compared:
        return "Nothing was confirmed to be faster than your script as it is."
    if fastest is not None:
        return (
            "Nothing that keeps the training is faster beyond doubt; "
            f"{fastest.config.text()} changes it and reaches the same loss {_ratio(fastest.speedup)} times "
            "as fast."
        )
    top = max(compared, key=lambda c: (c.wins, c.speedup.value))
    if top.wins:
        return f"{top.config.text()} is {_ratio(top.speedup)} times as fast, but {_why_not(study, top, bar)}."
    return (
        "Nothing is faster than your script beyond doubt; "
        f"the closest, {top.config.text()}, reads {_ratio(top.speedup)}."
    )


def _why_not(study: Study, compared: Comparison, bar: float) -> str:
    """Why a config that is faster beyond doubt is not recommended; the end of a sentence."""
    if broke := _broke(study, compared.config):
        return broke
    if not _fits(study, compared.peak_bytes):
        return "it needs more memory than allowed"
    if not _is_frugal(study, compared.config):
        return "it takes more energy per sample than wanted, or none was counted for it"
    if late := _late(study, compared):
        return late
    if compared.speedup.low <= bar:
        return f"your script differs from itself by up to {bar:.2f} times here"
    if not _saves(study, compared):
        return "it is not shown to take less energy per sample than your script"
    if compared.loss.rule:
        return compared.loss.reason[0].lower() + compared.loss.reason[1:].rstrip(".")
    if not compared.loss.passed:
        return "its loss is not shown to keep up: " + compared.loss.reason.rstrip(".")
    return "it was found by taking apart a winner that is none"


def _caveats(
    study: Study, rest: Sequence[Comparison], identical: Estimate | None, bar: float
) -> tuple[str, ...]:
    told: list[str] = []
    if study.stopped == SCRIPT_CHANGED:
        changed = study.changed or f"{study.spec.title} was changed meanwhile"
        told.append(f"{changed}: this holds for the script as it was before.")
    told += [*_memory_caveat(study), *_energy_caveat(study)]
    if identical is not None and bar > 1.0:
        told.append(
            f"Your script differs from itself by {_ratio(identical)}: this machine was not steady, and no "
            f"gain is claimed whose lower bound is not above {bar:.2f}."
        )
    if (moved := drifted(study)) is not None:
        told.append(
            f"The machine drifted: at the end your script itself ran {_ratio(moved)} times as fast as at the "
            "start. Gains are taken within pairs and do not feel that; figures of single trials do."
        )
    for c in rest:
        if c.wins:
            told.append(f"{c.config.text()} reads {_ratio(c.speedup)}, but {_why_not(study, c, bar)}.")
        elif 0 < c.speedup.n < FEWEST_PAIRS:
            few = f"{c.config.text()} was confirmed in {c.speedup.n} of {FEWEST_PAIRS} pairs only"
            broke = _broke(study, c.config)
            told.append(f"{few}: {broke}." if broke else f"{few}.")
    if not _cycles(study):
        ahead = finalists(study)
        if ahead:
            ranked = screened(study)
            ratio = ranked[ahead[0]] / ranked[_BASE]
            told.append(f"{ahead[0].text()} read {ratio:.2f} in screening; that was not confirmed.")
    elif identical is None:
        told.append("Too few runs to compare your script with itself.")
    told += _refused_caveat(study)
    if aside := disturbed_pairs(study, Stage.CONFIRM, _BASE):
        told.append(
            f"{aside} pair{'s were' if aside > 1 else ' was'} set aside: something else used the machine "
            "in one half and not in the other."
        )
    if not _traces(study, _BASE):
        told.append("No loss was seen, so only changes that keep the arithmetic can be recommended.")
    return tuple(told)


def _seen_from_outside(study: Study, compared: Sequence[Comparison]) -> list[str]:
    """What was recorded beside the figures that these comparisons rest on."""
    configs = list(dict.fromkeys(c.config for c in compared))
    return [*marked_runs(study, configs), *clocks_apart(study, configs), *left_out(study)]


def _refused_caveat(study: Study) -> list[str]:
    """What read faster than all else and was not confirmed, because no run of a search shows its harm."""
    ranked, steps = screened(study), trace_steps(study)
    tried = {t.config for t in study.told(Stage.CONFIRM)}
    found = {c: why for c in ranked if c not in tried and (why := barred(study, c, steps)) is not None}
    found = {c: why for c, why in found.items() if _fits_and_is_sane(study, c)}
    if not found:
        return []
    config = max(found, key=lambda c: (ranked[c], c.canonical()))
    base = ranked.get(_BASE, 0.0)
    if base <= 0 or ranked[config] <= max(r for c, r in ranked.items() if c not in found):
        return []
    ratio = ranked[config] / base
    return [f"{config.text()} read {ratio:.2f} in screening and was not confirmed. {found[config].sentence}"]


def _memory_caveat(study: Study) -> list[str]:
    """Where the script itself needs more than the user allows: the fastest that does not."""
    bound, own = study.spec.max_memory_bytes, _peak(study, _BASE)
    if bound is None or own is None or own <= bound or (config := fastest_fitting(study)) is None:
        return []
    needs = f"Your script as it is needs {own / 2**30:.2f} GiB, more than the {bound / 2**30:.2f} GiB allowed"
    return [f"{needs}; the fastest seen that fits is {config.text()}."]


def _failures(study: Study) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in study.told():
        if trial.failure is not None:
            label = trial.failure.kind.label
            counts[label] = counts.get(label, 0) + 1
    return counts


def _front(study: Study) -> tuple[FrontMember, ...]:
    """On a grid of 1 % in rate and memory and of the seed noise in loss: noise makes no member."""
    members: dict[Config, FrontMember] = {}
    samples = [t[-1].samples for t in (m.loss for m in _measured(study)) if t]
    end = min(samples, default=0)
    for trial in in_own_unit(study, study.told()):
        config, m = trial.config, trial.measurement
        if m is None or config in members or finite_and_sane(m.loss).verdict == "fail":
            continue
        runs = in_own_unit(study, study.of(config))
        rates = [amortised(study, t.measurement) for t in runs if t.measurement]
        members[config] = FrontMember(
            trial=trial.number,
            config=config,
            throughput=statistics.fmean(rates),
            peak_bytes=_peak(study, config),
            loss=_late_loss(m.loss, end),
        )
    base = _traces(study, _BASE)
    losses = [v for v in (_late_loss(t, end) for t in base.values()) if v is not None]
    grid = max(sd(losses), 1e-3 * abs(statistics.fmean(losses)) if losses else 0.0) or 1.0
    points = {
        config: (
            float(round(math.log(max(m.throughput, 1e-9)) / 0.01)),
            float(round(math.log(m.peak_bytes) / 0.01)) if m.peak_bytes else math.inf,
            float(round(m.loss / grid)) if m.loss is not None else math.inf,
        )
        for config, m in members.items()
    }
    goals = (Goal.MAXIMIZE, Goal.MINIMIZE, Goal.MINIMIZE)
    kept = front(points, goals)
    return tuple(sorted((members[c] for c in kept), key=lambda m: -m.throughput))


def _measured(study: Study) -> list[Measurement]:
    return [t.measurement for t in study.told() if t.measurement]


def _late_loss(trace: Sequence[LossPoint], end: int) -> float | None:
    late = [p.loss for p in trace if 2 * end / 3 < p.samples <= end] or [p.loss for p in trace[-3:]]
    return statistics.fmean(late) if late else None
