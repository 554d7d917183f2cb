"""The initial design: likely improvements, one change at a time, and early all of them together; pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.answer.ceilings import not_required
from autotune.compare.coverage import measured
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.compare.transfer import beliefs
from autotune.model.config import Config
from autotune.model.knob_families import applicable, families_of
from autotune.model.trial import Stage
from autotune.search.models.throughput_model import compute_part, loader_knobs, loader_part, wait_frac
from autotune.search.screening.acquisition import LEAST_GAIN, score
from autotune.search.screening.candidates import varied
from autotune.search.screening.feasible import is_single
from autotune.search.screening.replicates import run_sd
from autotune.search.screening.state import HELPS, SearchState, Suggestion
from autotune.statistics.spread import BELIEVED_SD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.compare.transfer import Beliefs
    from autotune.model.config import Value
    from autotune.model.space import Dimension

_BASE = Config()
_WAITS = 0.1
_JUMP_EVERY = 3
_START_SHARE = 0.6


def next_start(search: SearchState) -> Suggestion | None:
    """Return the next config of the design; None if nothing in it is likely to help."""
    priors = beliefs(search.study)
    for start in priors.starts:
        if (
            search.training_preserving(start.config)
            and search.hopeful(start.config)
            and search.may_try(start.config)
        ):
            return Suggestion(start.config, start.reason)
    initial = [t for t in search.study.trials if t.stage is Stage.INITIAL]
    is_due = not search.parts.expects and len(initial) % _JUMP_EVERY == _JUMP_EVERY - 1
    # If earlier studies show what helps, all of it together is tried first.
    if is_due or (priors.first and not initial):
        jump = _jump(search)
        if jump is not None:
            return jump
    if search.parts.expects:
        return _most_expected(search, priors)
    listed = [(c, r) for c, r in _in_order(search, priors) if c not in priors.trusted]
    for config, reason in _beside_leader(search, listed):
        if search.training_preserving(config) and search.hopeful(config) and search.may_try(config):
            return Suggestion(config, reason)
    return _jump(search)


def start_is_over(search: SearchState) -> bool:
    """Return whether start trials have used their share of the screening time."""
    spent = sum(t.seconds for t in search.study.finished(Stage.INITIAL))
    whole = spent + max(0.0, search.spare_s)
    return search.is_refining or spent > _START_SHARE * whole + search.costs.plain_s


def uncovered(search: SearchState) -> Suggestion | None:
    """Return the most promising change of an untested knob family, the cheapest family first.

    "Nothing is faster" requires a measurement of every family that applies. Changes with the largest expected
    gain come before: in a search of two minutes, families without expected gain would use the time of
    replicates and pairs (decision 102).
    """
    space, study = search.space, search.study
    listed = _listed(search, beliefs(study))
    running = frozenset[str]().union(*(families_of(space, t.config) for t in study.open_trials))
    missing = applicable(space) - measured(study) - running - not_required(study)
    found: dict[str, tuple[Config, str]] = {}
    for config, reason in _changes(search, listed):
        if not _runs(search, config) or not search.hopeful(config):
            continue
        for family in families_of(space, config) & missing:
            best = found.get(family)
            if best is None or search.model.predict(config)[0] > search.model.predict(best[0])[0]:
                found[family] = (config, reason)
    if not found:
        return None
    costs, model = search.costs, search.model
    family = min(found, key=lambda f: (costs.screening(found[f][0]), -model.predict(found[f][0])[0], f))
    config, reason = found[family]
    return Suggestion(config, f"{reason} Nothing of {family} was measured yet.")


def start_list(search: SearchState) -> Iterable[tuple[Config, str]]:
    """Return the changes to try alone, each with its reason, those that act on the bottleneck first."""
    waits = wait_frac(search.study) > _WAITS

    def late(config: Config) -> bool:
        part = compute_part(config) if waits else loader_part(config)
        return bool(config) and part == config

    starts = sorted(search.space.starts, key=late)
    yield from ((c, "A start that is worth trying first.") for c in starts if not late(c))
    # The bottleneck that a knob of the user acts on is unknown.
    own = {spec.name for spec in search.study.spec.space.declared}
    dimensions = sorted(
        search.space.free(), key=lambda d: d.knob not in own and (d.knob in loader_knobs()) is not waits
    )
    columns = [_promising(d) for d in dimensions]
    for turn in range(max((len(c) for c in columns), default=0)):
        for dimension, values in zip(dimensions, columns, strict=True):
            if turn < len(values):
                config = search.space.complete({dimension.knob: values[turn]})
                if isinstance(config, Config):
                    yield config, f"What {dimension.knob}={values[turn]} does by itself."
    yield from ((c, "A start that is worth trying.") for c in starts if late(c))


def _beside_leader(search: SearchState, listed: Sequence[tuple[Config, str]]) -> Iterable[tuple[Config, str]]:
    """Return each change of the list beside the best so far, where its effect may differ from that alone.

    Every run beside a compiling value costs a compile, so such values are left out of the best.
    """
    space, leader = search.space, _leader(search)
    if leader.is_baseline:
        yield from listed
        return
    around = space.resolved_free(leader)
    tried = _tried(search)
    # A compile costs several runs of the others, which show first which config it is worth most beside.
    for config, reason in sorted(listed, key=lambda entry: search.costs.cold_compile(entry[0]) > 0.0):
        changes = space.resolved_free(config)
        if tried.issuperset(changes.items()):
            continue
        beside = space.complete({**around, **changes})
        if isinstance(beside, Config) and search.training_preserving(beside) and search.may_try(beside):
            what = ", ".join(f"{k}={v}" for k, v in changes.items())
            yield beside, f"What {what} brings beside the best so far."
        else:
            yield config, reason


def _leader(search: SearchState) -> Config:
    """Return the best config that is likely ahead of the script; the unchanged script without one.

    Every run beside a compiling config costs a compile, so such a config is excluded.
    """
    model, failed = search.model, broken(search.study)
    seen = [
        c
        for c in model.seen
        if search.training_preserving(c) and c not in failed and may_win(search.study, c)
    ]
    plain = [c for c in seen if not search.costs.cold_compile(c)]
    if not search.parts.from_leader or not plain:
        return _BASE
    doubts = model.doubting(max(BELIEVED_SD, run_sd(search.study)))
    leader = max(plain, key=lambda c: (doubts.predict(model.point(c))[0], c.canonical()))
    ahead = max(HELPS, run_sd(search.study) / 2)
    return leader if doubts.predict(model.point(leader))[0] > ahead else _BASE


def _most_expected(search: SearchState, priors: Beliefs) -> Suggestion | None:
    """Return the largest gain for its cost: a start point, a change beside the best, all likely changes."""
    listed = _listed(search, priors)
    if any(t.stage is Stage.INITIAL for t in search.study.trials):
        # The effect of a knob declared by the user is unknown and of interest, so it is tried.
        ran = {knob for t in search.study.trials for knob in t.config}
        own = {spec.name for spec in search.study.spec.space.declared} - ran
        for option, reason in _changes(search, [c for c in listed if own & set(c)]):
            if _runs(search, option) and search.hopeful(option):
                return Suggestion(option, reason)
    starts = search.space.starts
    found: dict[Config, str] = dict.fromkeys(starts, "A start that is worth trying first.")
    found.update(_changes(search, listed))
    # Climbing misses changes that help only together, unless a start point holds them.
    for begun in (_leader(search), *search.space.starts):
        found.setdefault(_climbed_from(search, begun), "What is likely to help, together.")
    options = [
        c for c in found if c not in priors.trusted and search.training_preserving(c) and search.hopeful(c)
    ]
    scored = [s for s in score(search, options, search.best_training_preserving()) if s[1] >= LEAST_GAIN]
    if scored:
        _, _, config = max(scored, key=lambda s: (s[0], s[2].canonical()))
        ratio = math.exp(search.model.predict(config)[0])
        return Suggestion(config, f"{found[config]} {ratio:.2f} times the baseline expected.")
    for config in listed:
        if _only_failed_beside_others(search, config) and _runs(search, config):
            return Suggestion(config, f"Did {config.text()} that failed, or what it was tried with?")
    return None


def _listed(search: SearchState, priors: Beliefs) -> list[Config]:
    """Return the changes to try alone that no earlier study has measured."""
    return [c for c, _ in start_list(search) if c not in priors.trusted]


def _changes(search: SearchState, listed: Sequence[Config]) -> Iterable[tuple[Config, str]]:
    """Return each untried change of the list, beside the best so far or the largest compatible part of it."""
    space, leader = search.space, _leader(search)
    around = space.resolved_free(leader)
    tried = _tried(search)
    for config in listed:
        changes = space.resolved_free(config)
        if tried.issuperset(changes.items()):
            continue
        what = ", ".join(f"{k}={v}" for k, v in changes.items())
        alone = f"What {what} does by itself."
        beside = space.complete({**around, **changes})
        options = [beside] if _runs(search, beside) else []
        # A run beside the complete best shows the effect there; an incompatible change is tried beside a part
        # of it.
        if not options and beside not in search.feasible.proposed:
            parts = [{k: v for k, v in around.items() if k != out} for out in around]
            options = [c for c in (space.complete({**part, **changes}) for part in parts) if _runs(search, c)]
        for option in options:
            assert isinstance(option, Config)
            yield option, f"What {what} brings beside the best so far." if around else alone
        yield config, alone


def _tried(search: SearchState) -> set[tuple[str, Value]]:
    """Return values that have run; a value that failed beside others still has to be tried by itself."""
    space, trials = search.space, search.study.trials
    configs = [t.config for t in trials if t.failure is None or is_single(space, t.config)]
    return {item for config in configs for item in config.items()}


def _only_failed_beside_others(search: SearchState, config: Config) -> bool:
    """Return whether a single change never ran well and failed only in configs with more changes."""
    space, items = search.space, set(config.items())
    if not is_single(space, config):
        return False
    ran = [t for t in search.study.finished() if items <= set(t.config.items()) and not t.group]
    return bool(ran) and all(t.failure is not None and not is_single(space, t.config) for t in ran)


def _runs(search: SearchState, config: Config | str) -> bool:
    return isinstance(config, Config) and search.training_preserving(config) and search.may_try(config)


def _climbed_from(search: SearchState, config: Config) -> Config:
    """Climb by the model from this config, knob by knob, while a change is expected to count."""
    for dimension in search.space.free():
        options = varied(search, config, dimension)
        best = max(options, key=lambda c: (search.model.predict(c)[0], c.canonical()), default=config)
        if search.model.predict(best)[0] > search.model.predict(config)[0] + HELPS:
            config = best
    return config


def _in_order(search: SearchState, priors: Beliefs) -> list[tuple[Config, str]]:
    """Return the list, ordered by expected gain if earlier studies have results.

    Configs that failed in an earlier study of the script come last and are not excluded.
    """
    listed = list(start_list(search))
    if not priors.first and not priors.doubted:
        return listed

    def late(entry: tuple[Config, str]) -> tuple[bool, float]:
        expected = search.model.predict(entry[0])[0] if priors.first else 0.0
        return search.feasible.is_doubted(entry[0]), -expected

    return sorted(listed, key=late)


def _promising(dimension: Dimension) -> list[Value]:
    """Return values to try alone: for an ordered knob middle and end above its own, and both ends below."""
    own = next((i for i, v in enumerate(dimension.values) if _same(v, dimension.own)), None)
    if own is None or not dimension.ordinal:
        return [v for v in dimension.values if not _same(v, dimension.own)]
    above, below = list(dimension.values[own + 1 :]), list(dimension.values[:own])
    # The least value is often of another kind than the rest: no worker process, or one thread.
    picked = [*above[(len(above) - 1) // 2 :][:1], *above[-1:], *below[-1:], *below[:1]]
    return list(dict.fromkeys(picked))


def _same(a: Value, b: Value | None) -> bool:
    return type(a) is type(b) and a == b


def _jump(search: SearchState) -> Suggestion | None:
    """Return a config of all changes that helped."""
    config = _BASE
    for dimension in search.space.free():
        gains = [
            (search.model.predict(other)[0], other)
            for other in varied(search, config, dimension)
            if _seen_value(search, other, dimension)
        ]
        if not gains:
            continue
        gain, other = max(gains, key=lambda pair: (pair[0], pair[1].canonical()))
        if gain > search.model.predict(config)[0] + HELPS:
            config = other
    if len(config) < 2 or not search.training_preserving(config) or not search.may_try(config):
        return None
    ratio = math.exp(search.model.predict(config)[0])
    what = "What is likely to help" if beliefs(search.study).first else "What helped by itself"
    return Suggestion(config, f"{what}, together: {ratio:.2f} times the baseline expected.")


def _seen_value(search: SearchState, config: Config, dimension: Dimension) -> bool:
    item = config.get(dimension.knob)
    predicted = (f.config for f in beliefs(search.study).first)
    return item is None or any(c.get(dimension.knob) == item for c in (*search.model.seen, *predicted))
