"""Optuna's samplers as proposers of configs. The only module that imports optuna.

The Optuna study is rebuilt in memory for every proposal, so nothing has to be saved and an interrupted search
continues identically. A failed trial is passed to Optuna as complete, with the worst observed value and a
violated constraint: as failed, it would be ignored and proposed again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.compare.amortised_rate import objective_value
from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.trial import Family, TrialState
from autotune.search.strategy import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from autotune.model.config import Value
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.model.trial import Trial

KINDS = ("tpe", "random", "nsga2")
_TRIES = {"random": 256, "tpe": 8, "nsga2": 8}
"""Draws per proposal, some of which may be unusable."""

_TRIES_IN_LARGE = 32
"""The same in a space too large to enumerate, where only a draw can be proposed."""

_ENUMERABLE = 2000
_STARTUP = 6
_POPULATION = 10
_CONSTRAINT = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Numbers and names from which an Optuna study is built.

    Args:
        kind: One of `KINDS`.
        seed: Seed of the draws.
        knobs: Name, number of values, and whether their order is meaningful.
        observed: Positions by knob, objective values, and a violation above 0 for failures.
        worst: Objective values passed to Optuna for an unusable draw.
    """

    kind: str
    seed: int
    knobs: tuple[tuple[str, int, bool], ...]
    observed: tuple[tuple[dict[str, int], tuple[float, ...], float], ...]
    worst: tuple[float, ...]


class OptunaSampler(Sampler):
    """Sampler that wraps one of Optuna's samplers.

    Args:
        kind: ``tpe``, ``random`` or ``nsga2`` (throughput and memory together).

    Raises:
        UsageError: There is no such kind.
    """

    def __init__(self, kind: str = "tpe") -> None:
        if kind not in KINDS:
            message = f'there is no sampler "{kind}" in optuna'
            raise UsageError(message, hint=f"use one of: {', '.join(KINDS)}")
        self._kind = kind

    def propose(
        self, study: Study, space: SearchSpace, count_seed: int, may: Callable[[Config], bool] | None = None
    ) -> Config | None:
        """See `Sampler.propose`.

        An unusable or repeated draw is drawn again a bounded number of times. After that, in a space small
        enough to enumerate, the new config nearest to the first draw is proposed.
        """
        proposed = {t.config for t in study.trials}

        def usable(config: Config) -> bool:
            return config not in proposed and (may is None or may(config))

        question = _question(self._kind, study, space, count_seed)
        first: dict[str, int] = {}
        for params in self._drawn(question, is_large=space.size_bound() > _ENUMERABLE):
            # Later draws avoid the rejected ones: they lead away from the first proposal.
            first = first or params
            config = space.complete({d.knob: d.values[params[d.knob]] for d in space.free()})
            if isinstance(config, Config) and usable(config):
                return config
        return _nearest(space, first, usable)

    def _drawn(self, question: Question, *, is_large: bool) -> Iterator[dict[str, int]]:
        """Yield as many draws as a proposal is worth."""
        tries = _TRIES_IN_LARGE if is_large else _TRIES[self._kind]
        with contextlib.closing(draws(question)) as drawn:
            yield from itertools.islice(drawn, tries)


def optuna_module() -> Any:
    """Import Optuna, which takes a second, when it is needed."""
    import optuna

    return optuna


def draws(question: Question) -> Generator[dict[str, int]]:
    """Yield draws without end; each request for another one marks the last as unusable."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mirror = _mirror(question)
        choices = _distributions(question)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = mirror.ask(choices)
            params = {knob: int(drawn.params[knob]) for knob, _, _ in question.knobs}
        yield params
        # Optuna requires the same constraints of every trial; an unusable draw is bad, not failed.
        drawn.set_constraint(_CONSTRAINT, 0.0)
        mirror.tell(drawn, list(question.worst))


def _question(kind: str, study: Study, space: SearchSpace, count_seed: int) -> Question:
    """Return the question that describes a study to Optuna."""
    both = kind == "nsga2"
    finished = [
        t
        for t in study.trials
        if t.group == 0 and t.stage.is_compared and (t.measurement or t.failure or _is_open(t))
    ]
    rates = [objective_value(study, t.measurement) for t in finished if t.measurement]
    peaks = [t.measurement.memory.peak_bytes or 0 for t in finished if t.measurement]
    worst = (min(rates, default=0.0), float(max(peaks, default=0)))
    entries: list[tuple[dict[str, int], tuple[float, ...], float]] = []
    for trial in finished:
        params = _params(space, trial.config)
        if params is None:
            continue
        values, violation = worst, 0.0
        if trial.measurement is not None:
            values = (
                objective_value(study, trial.measurement),
                float(trial.measurement.memory.peak_bytes or 0),
            )
        elif trial.failure is not None and trial.failure.kind.family is not Family.LOST:
            violation = 1.0
        entries.append((params, values if both else values[:1], violation))
    return Question(
        kind=kind,
        seed=random.Random(f"{study.spec.seed}/{count_seed}").randrange(2**31),
        knobs=tuple((d.knob, len(d.values), d.ordinal) for d in space.free()),
        observed=tuple(entries),
        worst=(-1e9, 1e15) if both else (-1e9,),
    )


def _mirror(question: Question) -> Any:
    """Return an Optuna study with the same trials."""
    import optuna

    both, seed = question.kind == "nsga2", question.seed
    if question.kind == "random":
        sampler: Any = optuna.samplers.RandomSampler(seed=seed)
    elif question.kind == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True)
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=_POPULATION)
    directions: list[Any] = ["maximize", "minimize"] if both else ["maximize"]
    mirror = optuna.create_study(directions=directions, sampler=sampler)
    # Only trials drawn by Optuna have a generation; without one, no trial becomes a parent.
    generation: Callable[[], str] | None = getattr(sampler, "_get_generation_key", None)
    for index, (params, values, violation) in enumerate(question.observed):
        notes = {generation(): index // _POPULATION} if generation is not None else {}
        mirror.add_trial(_frozen(question, params, list(values), violation, notes))
    return mirror


def _is_open(trial: Trial) -> bool:
    return trial.state is not TrialState.FINISHED


def _distributions(question: Question) -> dict[str, Any]:
    """Return the positions of each dimension's values: a range if their order is meaningful."""
    import optuna

    return {
        knob: optuna.distributions.IntDistribution(0, size - 1)
        if ordinal
        else optuna.distributions.CategoricalDistribution(list(range(size)))
        for knob, size, ordinal in question.knobs
    }


def _params(space: SearchSpace, config: Config) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for dimension in space.free():
        place = _place(dimension.values, config.get(dimension.knob, dimension.own))
        if place is None:
            return None
        found[dimension.knob] = place
    return found


def _nearest(space: SearchSpace, params: dict[str, int], usable: Callable[[Config], bool]) -> Config | None:
    """Return the usable config that differs least; None in a space too large to enumerate."""
    if not params or space.size_bound() > _ENUMERABLE:
        return None
    near: tuple[float, str] | None = None
    found: Config | None = None
    for config in space.enumerate():
        places = _params(space, config)
        if places is None or not usable(config):
            continue
        away = math.fsum(
            abs(places[d.knob] - params[d.knob]) / len(d.values)
            if d.ordinal
            else float(places[d.knob] != params[d.knob])
            for d in space.free()
        )
        if near is None or (away, config.canonical()) < near:
            near, found = (away, config.canonical()), config
    return found


def _place(values: tuple[Value, ...], value: Value | None) -> int | None:
    for index, other in enumerate(values):
        if type(other) is type(value) and other == value:
            return index
    return None


def _frozen(
    question: Question, params: dict[str, int], values: list[float], violation: float, notes: dict[str, int]
) -> Any:
    """Return a complete trial."""
    import optuna

    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE,
        params=params,
        distributions=_distributions(question),
        values=values,
        constraints={_CONSTRAINT: violation},
        system_attrs=notes,
    )
