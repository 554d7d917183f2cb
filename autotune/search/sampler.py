"""Optuna's samplers as proposers of configs. The only module that imports optuna.

The optuna study is rebuilt in memory from ours at every question, so nothing has to be saved and
an interrupted search goes on as it would have. A failed trial is told as complete, with the worst
value seen and a violated constraint: told as failed, it would be ignored and proposed again.
"""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

from autotune.core.config import Config
from autotune.core.pick import amortised
from autotune.core.trial import Family, Stage, TrialState
from autotune.errors import UsageError
from autotune.search.strategy import Sampler

if TYPE_CHECKING:
    from autotune.core.config import Value
    from autotune.core.space import SearchSpace
    from autotune.core.study import Study
    from autotune.core.trial import Trial

KINDS = ("tpe", "random", "nsga2")
_TRIES = 32
_STARTUP = 6


class OptunaSampler(Sampler):
    """Proposes by one of optuna's samplers.

    Args:
        kind: ``tpe``, ``random`` or ``nsga2`` (throughput and memory together).

    Raises:
        UsageError: There is no such kind.
    """

    def __init__(self, kind: str = "tpe") -> None:
        if kind not in KINDS:
            message = f'there is no sampler "{kind}"'
            raise UsageError(message, hint=f"use one of: staged, {', '.join(KINDS)}")
        self._kind = kind

    def propose(self, study: Study, space: SearchSpace, count_seed: int) -> Config | None:
        """See `Sampler.propose`; None after a bounded number of draws that were asked before."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seed = random.Random(f"{study.spec.seed}/{count_seed}").randrange(2**31)
        asked = {t.config for t in study.trials}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mirror = self._mirror(study, space, seed)
            choices = _distributions(space)
            for _ in range(_TRIES):
                drawn = mirror.ask(choices)
                wanted = {d.knob: d.values[int(drawn.params[d.knob])] for d in space.free()}
                config = space.complete(wanted)
                if isinstance(config, Config) and config not in asked:
                    return config
                worst = [-1e9] if self._kind != "nsga2" else [-1e9, 1e15]
                mirror.tell(drawn, worst)
        return None

    def _mirror(self, study: Study, space: SearchSpace, seed: int) -> Any:
        """An optuna study that knows what ours knows."""
        import optuna

        if self._kind == "random":
            sampler: Any = optuna.samplers.RandomSampler(seed=seed)
        elif self._kind == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True)
        else:
            sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=10)
        both = self._kind == "nsga2"
        directions: list[Any] = ["maximize", "minimize"] if both else ["maximize"]
        mirror = optuna.create_study(directions=directions, sampler=sampler)
        told = [
            t
            for t in study.trials
            if t.group == 0 and t.stage is not Stage.WHY and (t.measurement or t.failure or _is_open(t))
        ]
        rates = [amortised(study, t.measurement) for t in told if t.measurement]
        peaks = [t.measurement.memory.peak_bytes or 0 for t in told if t.measurement]
        worst = [min(rates, default=0.0), float(max(peaks, default=0))]
        for trial in told:
            params = _params(space, trial.config)
            if params is None:
                continue
            values, violation = list(worst), 0.0
            if trial.measurement is not None:
                values = [
                    amortised(study, trial.measurement),
                    float(trial.measurement.memory.peak_bytes or 0),
                ]
            elif trial.failure is not None and trial.failure.kind.family is not Family.LOST:
                violation = 1.0
            mirror.add_trial(_frozen(space, params, values if both else values[:1], violation))
        return mirror


def _is_open(trial: Trial) -> bool:
    return trial.state is not TrialState.TOLD


def _distributions(space: SearchSpace) -> dict[str, Any]:
    """Positions in each dimension's values: a range where their order means something."""
    import optuna

    return {
        d.knob: optuna.distributions.IntDistribution(0, len(d.values) - 1)
        if d.ordinal
        else optuna.distributions.CategoricalDistribution(list(range(len(d.values))))
        for d in space.free()
    }


def _params(space: SearchSpace, config: Config) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for dimension in space.free():
        place = _place(dimension.values, config.get(dimension.knob, dimension.own))
        if place is None:
            return None
        found[dimension.knob] = place
    return found


def _place(values: tuple[Value, ...], value: Value | None) -> int | None:
    for index, other in enumerate(values):
        if type(other) is type(value) and other == value:
            return index
    return None


def _frozen(space: SearchSpace, params: dict[str, int], values: list[float], violation: float) -> Any:
    """A complete trial; older releases of optuna carry constraints as a system attribute."""
    import optuna

    plain: dict[str, Any] = {
        "state": optuna.trial.TrialState.COMPLETE,
        "params": params,
        "distributions": _distributions(space),
        "values": values,
    }
    try:
        return optuna.trial.create_trial(**plain, constraints={"runs": violation})
    except (TypeError, ValueError, AttributeError):
        return optuna.trial.create_trial(**plain, system_attrs={"constraints": [violation]})
