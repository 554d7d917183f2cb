"""Comparison of finalists with the baseline: paired gains from confirmation runs alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.compare.ablation import ablated, late_members
from autotune.compare.alpha_spending import FEWEST_PAIRS, claim_interval, finalist_share, pairs_wanted
from autotune.compare.amortised_rate import amortised, mean_rate, rate_unit
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.energy import counters, samples_per_joule
from autotune.compare.extension import goes_on
from autotune.compare.loss_verdicts import by_rule, found_equal_loss, level_two, loss_verdict
from autotune.compare.noise_model import Scatter, pair_scatter, prior_scatter, screening_gap, screening_logs
from autotune.compare.rounds import confirmation_cycles
from autotune.loss.loss_guard import LossVerdict
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.identity_cache import IdentityCache, study_key
from autotune.model.measurement import Estimate
from autotune.model.objective import ENERGY
from autotune.model.study import Study
from autotune.model.trial import Stage, Trial
from autotune.statistics.spread import LEAST_SPREAD, TAU_SHARE, pooled_spread, successive

_BASE = Config()
_COMPARED: IdentityCache[tuple[Comparison, ...]] = IdentityCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of one finalist with the baseline, from confirmation runs alone.

    Args:
        speedup: Ratio of amortised throughput, or of the time to equal loss for TRAINING configs. Its
            confidence allows for the number of finalists and interim analyses
            (`autotune.compare.alpha_spending`); its scatter is from `autotune.compare.noise_model`.
        is_early: The interval excludes 1 at the level of an interim analysis, which may end confirmation.
        wanted_pairs: Pairs with which the present gain would be claimed; None with fewer than two pairs,
            without a gain, or if more than the usual number.
        logs: Cycle -> ln ratio.
        loss: Verdict of the loss guard; of level 2 for TRAINING configs.
        throughput: Mean of its confirmation runs.
        saving: The script's energy per sample over this config's, from the same pairs and with the same
            statistics; energy to equal loss for TRAINING configs. None if energy is not the objective, or was
            not counted.
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
        """Whether it is certainly faster: enough pairs, and a lower bound above 1.00."""
        return self.speedup.n >= FEWEST_PAIRS and self.speedup.low > 1.0


def compare(study: Study) -> list[Comparison]:
    """Return the comparison of each confirmed config, in the order of their first confirmation."""
    return list(_COMPARED.get(study_key(study), lambda: tuple(_compared(study))))


def _compared(study: Study) -> list[Comparison]:
    space, cycles = study.space, confirmation_cycles(study)
    members = [c for c in dict.fromkeys(t.config for t in study.finished(Stage.CONFIRM)) if not c.is_baseline]
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
    pooled = Scatter(*pooled_spread(rates))
    floor = max(LEAST_SPREAD, TAU_SHARE * successive(rates))
    screened = screening_logs(study, cycles)
    prior = prior_scatter(screened, [t for runs in cycles.values() for t in runs.values()])
    # Parts found by ablation share the test of their winner, which costs no further alpha.
    whole, late = ablated(study), late_members(study)
    first = [c for c in members if c not in late]
    shares = {c: finalist_share(place, len(first)) for place, c in enumerate(first)}
    spent = spent_by_cycle(study, cycles)
    has_room = goes_on(study)
    found: list[Comparison] = []
    for config in members:
        if not logs[config]:
            continue
        effect = space.effect(config) if space is not None else Effect.TRAINING
        values = logs[config]
        if effect is Effect.TRAINING:
            later = found_equal_loss(study, config, cycles, rates)
            loss, keeps_early = level_two(later), later is not None and later.keeps_up_early
            values = (later.logs if later else None) or values
        else:
            loss, keeps_early = loss_verdict(study, config), True
        share = shares.get(config if whole is None or config in shares else whole, min(shares.values()))
        share = share / len(late) if config in late else share
        pairs, changes_training = list(values.values()), effect is Effect.TRAINING
        scatter = pair_scatter(
            pairs,
            floor=floor,
            pooled=pooled,
            # The time to equal loss scatters more than rates do, so the prior of rates does not apply.
            prior=None if changes_training else prior,
            gap=None if changes_training else screening_gap(config, screened, cycles),
        )
        # A config with fewer pairs has left before: no late analysis tested it.
        further = has_room and len(pairs) >= USUAL_RUNS
        speedup, is_early = claim_interval(pairs, share, scatter, goes_on=further)
        saved = _saving(study, config, effect, cycles, spent, share)
        found.append(
            Comparison(
                config=config,
                effect=effect,
                speedup=speedup,
                is_early=is_early and (keeps_early or speedup.high < 1.0) and (saved is None or saved[1]),
                wanted_pairs=pairs_wanted(pairs, share, scatter, most=USUAL_RUNS),
                logs=values,
                loss=by_rule(study, config, loss),
                throughput=_throughput(study, config, cycles, rates),
                peak_bytes=largest_peak_bytes(study, config),
                trial=next(t.number for t in study.finished() if t.config == config and t.measurement),
                saving=None if saved is None else saved[0],
            )
        )
    return found


def _throughput(
    study: Study,
    config: Config,
    cycles: Mapping[int, Mapping[Config, Trial]],
    rates: Mapping[int, Mapping[Config, float]],
) -> Estimate:
    windows = {g: runs[config].measurement for g, runs in cycles.items() if config in runs}
    runs = [(rates[g][config], m.throughput) for g, m in windows.items() if m is not None]
    return mean_rate(runs, rate_unit(study))


def spent_by_cycle(
    study: Study, cycles: Mapping[int, Mapping[Config, Trial]]
) -> dict[int, dict[Config, float]]:
    """Return cycle -> config -> samples/J of runs with the script's counters; empty for other objectives."""
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
    study: Study,
    config: Config,
    effect: Effect,
    cycles: Mapping[int, Mapping[Config, Trial]],
    spent: Mapping[int, Mapping[Config, float]],
    share: float,
) -> tuple[Estimate, bool] | None:
    """Return the script's energy per sample over a config's, and whether it is early; None if uncounted."""
    both = {g: s for g, s in spent.items() if config in s and _BASE in s}
    if not both:
        return None
    logs: Mapping[int, float] | None = {g: math.log(s[config] / s[_BASE]) for g, s in both.items()}
    if effect is Effect.TRAINING:
        later = found_equal_loss(study, config, {g: cycles[g] for g in both}, both)
        logs = later.logs if later else None
    if not logs:
        return None
    pairs = list(logs.values())
    floor = max(LEAST_SPREAD, TAU_SHARE * successive(spent))
    return claim_interval(
        pairs, share, pair_scatter(pairs, floor=floor, pooled=Scatter(*pooled_spread(spent)))
    )
