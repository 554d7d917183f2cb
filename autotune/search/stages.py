"""The search: baseline, start, refine, confirm. A pure function of the study.

Screening chooses, confirmation claims. What confirmation needs is set aside before screening
spends anything, and a confirmation cycle runs the baseline and every finalist once, in an order
that turns from cycle to cycle, so that a drifting machine treats all of them alike.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from autotune.core.ablation import without_idle
from autotune.core.broken import broken
from autotune.core.comparison import Comparison, compare
from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.finalists import finalists, may_win
from autotune.core.late_harm import barred
from autotune.core.loss_guard import MOST_RUNS
from autotune.core.objective import ENERGY
from autotune.core.stats import expected_gain
from autotune.core.transfer import beliefs
from autotune.core.trial import Family, Proposal, Stage
from autotune.core.verdicts import trace_steps
from autotune.search.ablating import next_ablation, under_way
from autotune.search.costs import Costs
from autotune.search.feasible import Feasible, is_single, suspect
from autotune.search.frontier import Frontier
from autotune.search.looks import NOISY, Look, leading, look_again, run_sd
from autotune.search.parts import DEFAULT, Parts
from autotune.search.probing import kept_s, script_probe, winner_probe
from autotune.search.strategy import Sampler, Strategy
from autotune.search.throughput_model import (
    LOADER_KNOBS,
    ThroughputModel,
    compute_part,
    loader_part,
    wait_frac,
)
from autotune.search.visits import visit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.core.config import Value
    from autotune.core.live import Visit
    from autotune.core.space import Dimension, SearchSpace
    from autotune.core.study import Study
    from autotune.core.transfer import Beliefs

_BASE = Config()
_BASELINES = 2
_ENUMERABLE = 512
_DRAWS = 64
_DRAWN = 32
_WAITS = 0.1
_HELPS = 0.01
_BELIEVED_SD = 0.02
_IDLE = 0.02
_NOTHING = 0.005
_LEAST_HOPE = 0.02
_LEAST_GAIN = 0.002
_PATIENCE = 8
_TRAINING_SHARE = 0.25
_TRAINING_EVERY = 4
_SAMPLER_EVERY = 3
_JUMP_EVERY = 3
_START_SHARE = 0.6
_CYCLES = 3
_CYCLES_WITH_MORE = 4
_PLANNED_CYCLES = 6
_MOST_CYCLES = MOST_RUNS
_CLEAR_WIDTH = 0.04
_CLEAR_SHARE = 0.25
_NO_GAIN = 1.02
_COST_POWER = 0.7
_LEAST_COST_POWER = 0.5
_LAST_STRETCH = 0.8
_DOMINATED = 0.8
_SENTINEL_FROM_S = 900.0
_SENTINEL_EVERY = 12
_COOLED_AFTER = 12
_AGAIN = "Once more, as"
_APART = "What failed, without its least proven value:"
_FRONT = "For less memory at its speed, as"
_FRONT_SHARE = 0.2
_FRONT_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class _Pick:
    config: Config
    reason: str


@dataclass(frozen=True, slots=True)
class _Search:
    """What every stage looks at, derived from the study once per question."""

    study: Study
    space: SearchSpace
    remaining_s: float
    costs: Costs
    feasible: Feasible
    model: ThroughputModel
    own: ThroughputModel
    """The same without what earlier studies tell; without any it is that very one."""
    reserve_s: float
    trials: int
    shown_steps: int
    parts: Parts

    @property
    def spare_s(self) -> float:
        return self.remaining_s - self.reserve_s

    def affordable(self, config: Config) -> bool:
        """It fits into what confirmation does not need, its own part in it included."""
        if self.costs.screening(config) > self.spare_s:
            return False
        compile_s = self.costs.cold_compile(config)
        return compile_s <= 0.5 * self.spare_s or compile_s <= 0.05 * self.study.spec.budget.seconds

    def hopeful(self, config: Config) -> bool:
        """The waits seen so far leave room for a gain over the baseline."""
        return self.model.roof(config) > _LEAST_HOPE

    def tame(self, config: Config) -> bool:
        """It leaves the training as it is, as far as runs of a search can show that."""
        if self.space.effect(config) is Effect.TRAINING:
            return False
        return not self.refused(config)

    def refused(self, config: Config) -> bool:
        """A rule keeps it from being recommended, whatever it reads."""
        return barred(self.study, config, self.shown_steps) is not None

    def permitted(self, config: Config) -> bool:
        """Under a kept effective batch only what the user allowed by name may change the training."""
        if self.study.spec.effective_batch != "keep" or self.tame(config):
            return True
        allowed, dimensions = self.study.spec.space.allowed, self.space.dimensions
        wild = [k for k in config if k in dimensions and dimensions[k].effect is Effect.TRAINING]
        return all(knob in allowed for knob in wild)

    def told_live(self) -> set[Config]:
        """What a running process has measured beside its own config, or is about to."""
        planned = (c for t in self.study.open_trials if t.visit is not None for c in t.visit.configs)
        return {*self.model.live, *planned}

    def best_tame(self) -> float:
        known = self.model.known
        seen = [c for c in known if self.tame(c)]
        if not self.parts.second_looks:
            return max((known[c] for c in seen), default=0.0)
        return self.model.predict(leading(self.model, seen))[0] if seen else 0.0


class Staged(Strategy):
    """Proposes baseline, start, refine and confirmation trials in turn.

    Args:
        sampler: Takes turns with the models while refining; None leaves all to the models.
        pure_sampler: The sampler takes the place of both start and refine; what is asked twice,
            does not fit or never worked is still kept from it.
        parts: What of the planner takes part.
    """

    def __init__(
        self, sampler: Sampler | None = None, *, pure_sampler: bool = False, parts: Parts = DEFAULT
    ) -> None:
        self._sampler = sampler
        self._pure_sampler = pure_sampler
        self._parts = parts

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """See `Strategy.ask`."""
        if study.stopped or remaining_s <= 0:
            return None
        first = self._baseline(study, remaining_s)
        if first is not None or study.space is None or len(_measured_baselines(study)) == 0:
            return first
        costs = Costs.of(study)
        probe = script_probe(study, costs, remaining_s)
        if probe is not None:
            return probe
        kept = kept_s(study, costs, _BASE)
        if not _confirming(study):
            proposal = self._screen(study, study.space, remaining_s - kept)
            if proposal is not None:
                return proposal
        proposal = _confirm(study, remaining_s - kept, self._parts)
        if proposal is not None or not kept:
            return proposal or winner_probe(study, costs, remaining_s)
        late = _confirm(study, remaining_s, self._parts)
        if late is not None and any(t.group == late.group for t in study.trials if t.stage is late.stage):
            return late  # the other half of a pair that is paid for already
        return winner_probe(study, costs, remaining_s) or late

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """See `Strategy.is_finished`."""
        if study.open_trials:
            return False
        return self.ask(study, remaining_s) is None

    def ending(self, study: Study, remaining_s: float) -> str:
        """See `Strategy.ending`."""
        if study.space is None or not _measured_baselines(study):
            return ""
        kept = kept_s(study, Costs.of(study), _BASE)
        search = _look(study, study.space, remaining_s - kept, self._parts)
        if search is None:
            why = "nothing was counted to compare by" if study.space.free() else "no knob is left to vary"
            return f"Nothing new was tried, as {why}."
        return f"Nothing new was tried any more, as {self._why_over(search)}."

    def _why_over(self, search: _Search) -> str:
        if _trials_spent(search):
            return "the number of trials left is what confirming takes"
        if search.spare_s < search.costs.plain_s:
            return "the time left is what confirming takes"
        if self._pure_sampler:
            return "the sampler had nothing more to propose"
        if _no_progress(search, _whole_patience(search)):
            return f"the last {_whole_patience(search)} runs that looked for more found nothing faster"
        return _too_dear(replace(search, model=search.own)) or (
            "nothing that is left, fits into the time and is likely to run was expected to be faster"
        )

    def _baseline(self, study: Study, remaining_s: float) -> Proposal | None:
        asked = [t for t in study.trials if t.stage is Stage.BASELINE]
        limit = study.spec.budget.trials
        wanted = _BASELINES if limit is None else min(_BASELINES, limit)
        if study.open_trials or len(asked) >= wanted or len(asked) < len(study.trials):
            return None
        if asked and not _measured_baselines(study):
            return None
        costs = Costs.of(study)
        if asked and costs.plain_s * (1 + 2 * _CYCLES) > remaining_s:
            return None
        fidelity = costs.fidelity(Stage.BASELINE, _BASE, remaining_s=remaining_s, reserve_s=0.0)
        reason = "Your script as it is" + (", once more with another seed." if asked else ".")
        going_on = self._visit(study, remaining_s) if asked else None
        if going_on is not None:
            reason += f" Its process then tries {len(going_on.configs)} changes that it can be switched to."
        return Proposal(
            stage=Stage.BASELINE,
            config=_BASE,
            fidelity=fidelity,
            reason=reason,
            seed=len(asked),
            visit=going_on,
        )

    def _visit(self, study: Study, remaining_s: float) -> Visit | None:
        """What the second process of the script goes on with: single changes that it can be switched to."""
        if not study.spec.live or self._pure_sampler or study.space is None:
            return None
        search = _look(study, study.space, remaining_s, self._parts)
        if search is None:
            return None
        wanted = (c for c, _ in _start_list(search) if search.tame(c) and _may_try(search, c))
        return visit(study, dict.fromkeys(wanted), search.costs, search.spare_s - search.costs.plain_s)

    def _screen(self, study: Study, space: SearchSpace, remaining_s: float) -> Proposal | None:
        search = _look(study, space, remaining_s, self._parts)
        if search is None or search.spare_s < search.costs.plain_s or _trials_spent(search):
            return None
        if _sentinel_due(search):
            return _proposal(search, Stage.SENTINEL, _Pick(_BASE, "Your script once more: does it drift?"))
        if self._pure_sampler:
            return _proposal(search, Stage.REFINE, self._sampled(search))
        apart = _separating(search)
        if apart is not None:
            return _proposal(search, Stage.REFINE if _refining(study) else Stage.START, apart)
        picked = None if _started(search) else _start(search)
        if picked is not None:
            return _proposal(search, Stage.START, picked)
        # What others have seen orders a search; it ends none.
        own = replace(search, model=search.own)
        look = _look_again(own, at_end=False)
        if look is not None:
            return _again(own, look)
        if _too_dear(own):
            return None
        if _no_progress(own, _whole_patience(own)):
            return _proposal(own, Stage.REFINE, _for_front(own))
        count = sum(1 for t in study.trials if t.stage is Stage.REFINE)
        search, picked = _on_its_own(search), None
        if count % _TRAINING_EVERY == _TRAINING_EVERY - 2:
            picked = _simpler(search)
        elif count % _TRAINING_EVERY == _TRAINING_EVERY - 1:
            picked = _bold(search)
        elif search.parts.free_draws and _is_square(count):
            picked = _drawn(search)
        if picked is None and self._sampler is not None and count % _SAMPLER_EVERY == _SAMPLER_EVERY - 1:
            picked = self._sampled(search)
        # Where nothing is left that keeps the training, what changes it gets its turn at once.
        picked = picked or _likeliest(search) or _simpler(search) or _bold(search)
        if picked is None and search.model is not search.own:
            picked = _likeliest(own)
        if picked is None and search.parts.free_draws and count < _PATIENCE:
            picked = _drawn(search)
        last = _proposal(search, Stage.REFINE, picked) or _doubting(own)
        return last or _proposal(own, Stage.REFINE, _for_front(own))

    def _sampled(self, search: _Search) -> _Pick | None:
        if self._sampler is None:
            return None
        for attempt in range(_DRAWS):
            number = search.trials * _DRAWS + attempt
            may = partial(_may_try, search)
            config = self._sampler.propose(search.study, search.space, number, may)
            if config is None:
                return None
            if _may_try(search, config):
                return _Pick(config, "Drawn by the sampler.")
        return None


def _look(study: Study, space: SearchSpace, remaining_s: float, parts: Parts) -> _Search | None:
    own = ThroughputModel.of(study, space, pairs=parts.pair_terms)
    if own is None or not space.free():
        return None
    costs, model = Costs.of(study), own
    leaders = _leaders(study, own, parts=parts)
    if beliefs(study).first:
        model = ThroughputModel.of(study, space, pairs=parts.pair_terms, informed=True) or own
    pending = [t.config for t in study.open_trials if t.config not in own.seen]
    if pending and parts.believes_pending:
        believed = own.believing(pending)
        own, model = believed, believed if model is own else model.believing(pending)
    return _Search(
        study=study,
        space=space,
        remaining_s=remaining_s,
        costs=costs,
        feasible=Feasible.of(study, space, separates=parts.separates),
        model=model,
        own=own,
        # Who is confirmed beside the first only to be told apart from it gets what is left over.
        reserve_s=costs.reserve(leaders),
        trials=len(study.trials),
        shown_steps=trace_steps(study),
        parts=parts,
    )


def _proposal(search: _Search, stage: Stage, picked: _Pick | None) -> Proposal | None:
    if picked is None:
        return None
    fidelity = search.costs.fidelity(
        stage, picked.config, remaining_s=search.remaining_s, reserve_s=search.reserve_s
    )
    # A slow run may take the least energy.
    if stage is not Stage.SENTINEL and search.study.spec.objective != ENERGY:
        fidelity = replace(fidelity, dominated_below=_DOMINATED * _fastest_seen(search, picked.config))
    return Proposal(stage=stage, config=picked.config, fidelity=fidelity, reason=picked.reason)


def _fastest_seen(search: _Search, config: Config) -> float:
    """The highest throughput that a run of its kind surely had, in samples/s; 0 where samples are not known.

    What changes the training competes for another pick, so it is no bar to what leaves it as it is.
    """
    told = [t for t in search.study.told() if t.measurement is not None]
    if search.tame(config):
        told = [t for t in told if search.tame(t.config)]
    rates = [t.measurement.throughput for t in told if t.measurement is not None]
    return max((rate.low for rate in rates if rate.unit == "samples/s"), default=0.0)


def _most_members(limit: int) -> int:
    """Finalists for which a number of trials has room beside baselines and one other run; at least one."""
    return max(1, (limit - _BASELINES - 1) // _CYCLES - 1)


def _trials_spent(search: _Search) -> bool:
    limit = search.study.spec.budget.trials
    return limit is not None and (search.trials >= _screening_trials(search, limit) or search.trials >= limit)


def _screening_trials(search: _Search, limit: int) -> int:
    """Trials that a limit leaves when confirmation has what it needs."""
    # As many finalists as three cycles leave room for; one and the script are the least.
    leaders = _leaders(search.study, search.own, parts=search.parts)
    members = min(len(leaders), _most_members(limit))
    return max(_BASELINES + 1, limit - _CYCLES * (1 + max(1, members)))


def _sentinel_due(search: _Search) -> bool:
    """Screening has gone on for long without a look at the script as it is, and there is time for it."""
    study = search.study
    if study.spec.budget.seconds < _SENTINEL_FROM_S or study.spec.budget.trials is not None:
        return False
    last = max((i for i, t in enumerate(study.trials) if t.config.is_baseline), default=0)
    return len(study.trials) - 1 - last >= _SENTINEL_EVERY


# Start: what is likely to help, one change at a time, and early all of it together.


def _start(search: _Search) -> _Pick | None:
    told = beliefs(search.study)
    for start in told.starts:
        if search.tame(start.config) and search.hopeful(start.config) and _may_try(search, start.config):
            return _Pick(start.config, start.reason)
    asked = [t for t in search.study.trials if t.stage is Stage.START]
    is_told_live = bool(search.model.live) and not asked
    is_due = len(asked) % _JUMP_EVERY == _JUMP_EVERY - 1
    # Where it is told already what helps, all of that together is the first to be tried.
    if is_due or is_told_live or (told.first and not asked):
        jump = _jump(search)
        if jump is not None:
            return jump
    fresh = _afresh(search)
    if fresh is not None:
        return fresh
    live = search.told_live()
    listed = [(c, r) for c, r in _in_order(search, told) if c not in told.trusted and c not in live]
    for config, reason in _beside_leader(search, listed):
        if search.tame(config) and search.hopeful(config) and _may_try(search, config):
            return _Pick(config, reason)
    return _jump(search)


def _beside_leader(search: _Search, listed: Sequence[tuple[Config, str]]) -> Iterable[tuple[Config, str]]:
    """Each change of the list beside the best so far: what it brings there need not be what it brings alone.

    Beside what compiles a run costs a compile of its own, so that is left out of the best.
    """
    space, model, failed = search.space, search.model, broken(search.study)
    seen = [c for c in model.seen if search.tame(c) and c not in failed and may_win(search.study, c)]
    plain = [c for c in seen if not search.costs.cold_compile(c)]
    doubts = model.doubting(max(_BELIEVED_SD, run_sd(search.study)))
    leader, ahead = _BASE, max(_HELPS, run_sd(search.study) / 2)
    if search.parts.from_leader and plain:
        leader = max(plain, key=lambda c: (doubts.predict(model.point(c))[0], c.canonical()))
    if leader.is_baseline or doubts.predict(model.point(leader))[0] <= ahead:
        yield from listed
        return
    around = space.resolved_free(leader)
    # What failed beside others has yet to be tried by itself.
    tried = {
        item
        for t in search.study.trials
        if t.failure is None or is_single(space, t.config)
        for item in t.config.items()
    }
    # A compile costs several runs of the others, which may tell first beside what it is worth most.
    for config, reason in sorted(listed, key=lambda entry: search.costs.cold_compile(entry[0]) > 0.0):
        changes = space.resolved_free(config)
        if tried.issuperset(changes.items()):
            continue
        beside = space.complete({**around, **changes})
        if isinstance(beside, Config) and search.tame(beside) and _may_try(search, beside):
            what = ", ".join(f"{k}={v}" for k, v in changes.items())
            yield beside, f"What {what} brings beside the best so far."
        else:
            yield config, reason


def _in_order(search: _Search, told: Beliefs) -> list[tuple[Config, str]]:
    """The list as it is; where earlier studies tell something, by what is to be expected.

    What failed in an earlier study of the script comes last, and is not left out.
    """
    listed = list(_start_list(search))
    if not told.first and not told.doubted:
        return listed

    def late(entry: tuple[Config, str]) -> tuple[bool, float]:
        expected = search.model.predict(entry[0])[0] if told.first else 0.0
        return search.feasible.is_doubted(entry[0]), -expected

    return sorted(listed, key=late)


def _afresh(search: _Search) -> _Pick | None:
    """What segments of a running process show to be the fastest so far: only a process of its own counts."""
    model = search.model
    best = max((y for c, y in model.seen.items() if search.tame(c)), default=0.0)
    hopeful = {c: y for c, y in model.live.items() if y > best + _HELPS}
    ranked = sorted(hopeful, key=lambda c: (-hopeful[c], c.canonical()))
    config = next((c for c in ranked if search.tame(c) and _may_try(search, c)), None)
    if config is None:
        return None
    ratio = math.exp(hopeful[config])
    return _Pick(config, f"{ratio:.2f} times the baseline in a running process; now in one of its own.")


def _started(search: _Search) -> bool:
    """Start trials have had their share of the time that screening has in all."""
    spent = sum(t.seconds for t in search.study.told(Stage.START))
    whole = spent + max(0.0, search.spare_s)
    return _refining(search.study) or spent > _START_SHARE * whole + search.costs.plain_s


def _refining(study: Study) -> bool:
    return any(t.stage is Stage.REFINE for t in study.trials)


def _start_list(search: _Search) -> Iterable[tuple[Config, str]]:
    waits = wait_frac(search.study) > _WAITS

    def late(config: Config) -> bool:
        part = compute_part(config) if waits else loader_part(config)
        return bool(config) and part == config

    starts = sorted(search.space.starts, key=late)
    yield from ((c, "A start that is worth trying first.") for c in starts if not late(c))
    # Nobody knows what a knob of the user's own acts on.
    own = {spec.name for spec in search.study.spec.space.declared}
    dimensions = sorted(
        search.space.free(), key=lambda d: d.knob not in own and (d.knob in LOADER_KNOBS) is not waits
    )
    columns = [_promising(d) for d in dimensions]
    for turn in range(max((len(c) for c in columns), default=0)):
        for dimension, values in zip(dimensions, columns, strict=True):
            if turn < len(values):
                config = search.space.complete({dimension.knob: values[turn]})
                if isinstance(config, Config):
                    yield config, f"What {dimension.knob}={values[turn]} does by itself."
    yield from ((c, "A start that is worth trying.") for c in starts if late(c))


def _promising(dimension: Dimension) -> list[Value]:
    """Values to try alone: of an ordered knob the middle and the end above the script's own, then below."""
    own = next((i for i, v in enumerate(dimension.values) if _same(v, dimension.own)), None)
    if own is None or not dimension.ordinal:
        return [v for v in dimension.values if not _same(v, dimension.own)]
    above, below = list(dimension.values[own + 1 :]), list(dimension.values[:own])
    if not above:
        return below[::-1][:2]
    return list(dict.fromkeys([above[(len(above) - 1) // 2], above[-1], *below[-1:]]))


def _same(a: Value, b: Value | None) -> bool:
    return type(a) is type(b) and a == b


def _jump(search: _Search) -> _Pick | None:
    """Everything that helped, together."""
    config = _BASE
    for dimension in search.space.free():
        gains = [
            (search.model.predict(other)[0], other)
            for other in _varied(search, config, dimension)
            if _seen_value(search, other, dimension)
        ]
        if not gains:
            continue
        gain, other = max(gains, key=lambda pair: (pair[0], pair[1].canonical()))
        if gain > search.model.predict(config)[0] + _HELPS:
            config = other
    if len(config) < 2 or not search.tame(config) or not _may_try(search, config):
        return None
    ratio = math.exp(search.model.predict(config)[0])
    what = "What is likely to help" if beliefs(search.study).first else "What helped by itself"
    return _Pick(config, f"{what}, together: {ratio:.2f} times the baseline expected.")


def _varied(search: _Search, config: Config, dimension: Dimension) -> list[Config]:
    found: list[Config] = []
    for value in dimension.values:
        other = search.space.complete({**search.space.resolved_free(config), dimension.knob: value})
        if isinstance(other, Config) and other != config and search.tame(other):
            bad = any(item in search.feasible.quarantined for item in other.items())
            if not bad and search.feasible.memory.fits(other) >= 0.5:
                found.append(other)
    return found


def _seen_value(search: _Search, config: Config, dimension: Dimension) -> bool:
    item = config.get(dimension.knob)
    told = (f.config for f in beliefs(search.study).first)
    return item is None or any(c.get(dimension.knob) == item for c in (*search.model.known, *told))


# Refine: expected improvement by the models, the sampler in between.


def _likeliest(search: _Search) -> _Pick | None:
    incumbent = search.best_tame()
    scored = _scored(search, (c for c in _pool(search) if search.tame(c)), incumbent)
    if not scored:
        return None
    _, gain, config = max(scored, key=lambda s: (s[0], s[2].canonical()))
    if gain < _LEAST_GAIN and sum(1 for t in search.study.trials if t.stage is Stage.REFINE) >= 3:
        return None
    mean, sd = search.model.predict(config)
    low, high = math.exp(mean - 2 * sd), math.exp(mean + 2 * sd)
    return _Pick(
        config,
        f"Predicted {math.exp(mean):.2f} [{low:.2f}, {high:.2f}] times the baseline, runs with "
        f"p = {search.feasible.works(config):.2f}, {search.costs.screening(config):.0f} s.",
    )


def _look_again(search: _Search, *, at_end: bool) -> Look | None:
    if not search.parts.second_looks:
        return None
    seen = [c for c in search.model.seen if c and search.tame(c) and may_win(search.study, c)]
    seen = [c for c in seen if search.affordable(c)]
    if not seen or search.model.predict(leading(search.model, seen))[0] <= 0.0:
        return None
    return look_again(search.study, search.model, seen, at_end=at_end)


def _again(search: _Search, look: Look) -> Proposal:
    """Not cut off as too slow: how slow it can be is the question."""
    reason = (
        f"{_AGAIN} runs of one config differ by {look.run_sd:.0%} here: "
        f"to know it better may bring {look.gain:.1%}."
    )
    fidelity = search.costs.fidelity(
        Stage.REFINE, look.config, remaining_s=search.remaining_s, reserve_s=search.reserve_s
    )
    return Proposal(stage=Stage.REFINE, config=look.config, fidelity=fidelity, reason=reason, seed=look.runs)


def _doubting(search: _Search) -> Proposal | None:
    """Nothing more is expected by somebody who takes each run at its word: what others would still try."""
    sd = run_sd(search.study)
    if not search.parts.second_looks or sd < NOISY:
        return None
    look, picked = _look_again(search, at_end=True), None
    seen = [c for c in search.model.seen if search.tame(c)]
    if seen:
        doubts, leader = search.model.doubting(sd), leading(search.model, seen)
        at = search.model.point(leader)
        gains = [
            (expected_gain(*doubts.difference(search.model.point(c), at)) * search.feasible.works(c), c)
            for c in _pool(search)
            if search.tame(c) and search.hopeful(c) and _may_try(search, c)
        ]
        gain, config = max(gains, key=lambda g: (g[0], g[1].canonical()), default=(0.0, _BASE))
        if gain >= max(_LEAST_GAIN, look.gain if look else 0.0):
            picked = _Pick(
                config, f"Runs of one config differ by {sd:.0%} here, so this may still bring {gain:.1%}."
            )
    if picked is None and look is not None:
        return _again(search, look)
    return _proposal(search, Stage.REFINE, picked)


def _separating(search: _Search) -> _Pick | None:
    """Is it this value that fails, or what it was tried with?"""
    last = next((t for t in reversed(search.study.told()) if t.failure is not None), None)
    if last is None or last.reason.startswith(_APART) or not search.parts.separates:
        return None  # what fails once more does so for another reason, and one question is enough
    config = suspect(search.study, search.feasible)
    if config is None or not search.tame(config) or not _may_try(search, config):
        return None
    return _Pick(config, f"{_APART} is that to blame?")


def _for_front(search: _Search) -> _Pick | None:
    """Most memory spared for its speed, where nothing faster is expected; for a part of the time."""
    if not search.parts.front_share or search.study.spec.objective == ENERGY:
        return None
    told = search.study.told(Stage.START, Stage.REFINE)
    whole = sum(t.seconds for t in told) + max(0.0, search.spare_s)
    spent = sum(t.seconds for t in told if t.reason.startswith(_FRONT))
    seen = [c for c in search.model.seen if search.tame(c)]
    front = Frontier(search.study, search.model, search.feasible.memory, seen)
    worth: list[tuple[float, Config]] = []
    for config in _pool(search):
        cost_s = search.costs.screening(config)
        if not search.tame(config) or not _may_try(search, config) or spent + cost_s > _FRONT_SHARE * whole:
            continue
        gain = front.gain(config) * search.feasible.works(config)
        if gain >= _FRONT_GAIN:
            worth.append((gain / max(0.1, cost_s), config))
    if not worth:
        return None
    _, config = max(worth, key=lambda w: (w[0], w[1].canonical()))
    return _Pick(config, f"{_FRONT} nothing faster is expected.")


def _simpler(search: _Search) -> _Pick | None:
    """The best so far without what the model says brings nothing: where it is as fast, it takes its place."""
    model = search.model
    best = max((c for c in model.seen if search.tame(c)), key=lambda c: (model.predict(c)[0], c.canonical()))
    config = _trimmed(search.space, model, best)
    if config == best or not config or not _may_try(search, config):
        return None
    out = ", ".join(k for k in search.space.resolved_free(best) if k not in config)
    return _Pick(config, f"The best so far without what seems to bring nothing: {out}.")


def _trimmed(space: SearchSpace, model: ThroughputModel, config: Config, *, idle: float = _IDLE) -> Config:
    """The config without changes that together bring less than this by the model; it may be new."""
    whole = model.predict(config)[0]
    while len(config) > 1:
        wanted = space.resolved_free(config)
        parts = [space.complete({k: v for k, v in wanted.items() if k != knob}) for knob in wanted]
        smaller = [c for c in parts if isinstance(c, Config) and c and len(c) < len(config)]
        if not smaller:
            break
        best = max(smaller, key=lambda c: (model.predict(c)[0], c.canonical()))
        if whole - model.predict(best)[0] >= idle:
            break
        config = best
    return config


def _is_square(count: int) -> bool:
    """Turns of what is drawn at random: more while little is known, and in no other turn's way."""
    return count > 1 and math.isqrt(count) ** 2 == count


def _drawn(search: _Search) -> _Pick | None:
    """Of some configs drawn at random the one with most pairs of changes never seen together, for its cost.

    What no model expects is found by chance alone, and sooner by a config that holds many chances.
    """
    space, draw = search.space, random.Random(f"{search.study.spec.seed}/{search.trials}/free")
    if space.size_bound() <= _ENUMERABLE:
        pool = list(space.enumerate())
        draw.shuffle(pool)
    else:
        free = space.free()
        completed = [space.complete({d.knob: draw.choice(d.values) for d in free}) for _ in range(_DRAWS)]
        pool = [c for c in completed if isinstance(c, Config)]
    likely = (c for c in pool if search.tame(c) and search.hopeful(c) and _may_try(search, c))
    drawn = list(itertools.islice(likely, _DRAWN))
    if not drawn:
        return None
    known = {pair for c in search.model.seen for pair in itertools.combinations(c.items(), 2)}
    power = _cost_power(search)

    def worth(config: Config) -> float:
        new = sum(pair not in known for pair in itertools.combinations(config.items(), 2))
        return new * search.feasible.works(config) / max(0.1, search.costs.screening(config)) ** power

    return _Pick(max(drawn, key=worth), "Drawn at random: what no model expects is found by chance alone.")


def _bold(search: _Search) -> _Pick | None:
    """A config that changes the training, while that has had less than its share of the time."""
    told = search.study.told(Stage.START, Stage.REFINE)
    spent = sum(t.seconds for t in told if not search.tame(t.config))
    whole = sum(t.seconds for t in told) + max(0.0, search.spare_s)
    # One look at what a rule refuses is enough to say what it would bring; it is no bar to the others.
    looked = any(search.refused(t.config) for t in search.study.trials)
    pool = [c for c in _pool(search) if not search.tame(c) and search.permitted(c)]
    pool = [c for c in pool if not (looked and search.refused(c))]
    incumbent = max((y for c, y in search.model.seen.items() if not search.refused(c)), default=0.0)
    if not pool:
        return None
    scored = [
        s
        for s in _scored(search, pool, incumbent)
        if spent + search.costs.screening(s[2]) <= _TRAINING_SHARE * whole
    ]
    if not scored:
        return None
    _, gain, config = max(scored, key=lambda s: (s[0], s[2].canonical()))
    if gain < _LEAST_GAIN:
        return None
    ratio = math.exp(search.model.predict(config)[0])
    return _Pick(config, f"Changes the training; {ratio:.2f} times the baseline's throughput expected.")


def _scored(search: _Search, pool: Iterable[Config], incumbent: float) -> list[tuple[float, float, Config]]:
    power = _cost_power(search)
    scored: list[tuple[float, float, Config]] = []
    for config in pool:
        if not _may_try(search, config):
            continue
        gain = search.model.expected_improvement(config, incumbent) * search.feasible.works(config)
        scored.append((gain / max(0.1, search.costs.screening(config)) ** power, gain, config))
    return scored


def _cost_power(search: _Search) -> float:
    """How much the cost of a run counts: ever less, and not at all at the end, where nothing follows."""
    told = search.study.told(Stage.START, Stage.REFINE)
    if not search.parts.lasting_cost:
        done = sum(1 for t in search.study.trials if t.stage in (Stage.START, Stage.REFINE))
        return _COST_POWER * max(0.0, 1.0 - done / _COOLED_AFTER)
    spent_s, spare_s = sum(t.seconds for t in told), max(0.0, search.spare_s)
    share = spent_s / (spent_s + spare_s) if spent_s + spare_s > 0.0 else 1.0
    limit = search.study.spec.budget.trials
    if limit is not None:
        share = max(share, min(1.0, search.trials / _screening_trials(search, limit)))
    if share < _LAST_STRETCH:
        return _COST_POWER - (_COST_POWER - _LEAST_COST_POWER) * share / _LAST_STRETCH
    return _LEAST_COST_POWER * (1.0 - share) / (1.0 - _LAST_STRETCH)


def _may_try(search: _Search, config: Config) -> bool:
    return search.permitted(config) and search.feasible.allows(config) and search.affordable(config)


def _pool(search: _Search) -> list[Config]:
    """Candidates: all of a small space; else neighbours of the best, the best sum, and draws."""
    space = search.space
    if space.size_bound() <= _ENUMERABLE:
        return [c for c in space.enumerate() if c not in search.feasible.asked]
    ranked = sorted(search.model.seen, key=lambda c: (-search.model.seen[c], c.canonical()))
    found: dict[Config, None] = {}
    for config in [*ranked[:3], _climbed(search, ranked[0])]:
        found[config] = None
        found.update(dict.fromkeys(space.neighbours(config)))
    draw = random.Random(f"{search.study.spec.seed}/{search.trials}")
    for _ in range(_DRAWS):
        wanted = {d.knob: draw.choice(d.values) for d in space.free()}
        config = space.complete(wanted)
        if isinstance(config, Config):
            found[config] = None
    return [c for c in found if c not in search.feasible.asked]


def _climbed(search: _Search, config: Config) -> Config:
    """Uphill by the model from here, knob by knob."""
    for _ in range(2):
        for dimension in search.space.free():
            options = [config, *_varied(search, config, dimension)]
            config = max(options, key=lambda c: (search.model.predict(c)[0], c.canonical()))
    return config


def _patience(search: _Search) -> int:
    """Refining runs without a find after which it is enough."""
    return max(_PATIENCE, 2 * len(search.space.free()))


def _too_dear(search: _Search) -> str:
    """Why another run is not worth its time by the length that the user gave of the real run; else empty.

    What the script's own options say is the length of one run, and nobody knows how many will follow.
    """
    steps, times = search.study.spec.run_steps, _step_times(search.study)
    if not steps or not times or search.study.spec.objective == ENERGY:
        return ""
    best = search.best_tame()
    planned_s = steps * statistics.fmean(times) / math.exp(max(0.0, best))
    pool = _pool(search)
    wild = [c for c in pool if not search.tame(c) and search.permitted(c) and not search.refused(c)]
    bar = max((y for c, y in search.model.seen.items() if not search.refused(c)), default=0.0)
    scored = [*_scored(search, filter(search.tame, pool), best), *_scored(search, wild, bar)]
    options = [
        (planned_s * -math.expm1(-gain) - search.costs.screening(config), gain, config)
        for _, gain, config in scored
    ]
    if not options:
        return ""
    worth_s, gain, config = max(options, key=lambda o: (o[0], o[2].canonical()))
    if worth_s > 0.0:
        return ""
    saved_s, cost_s = planned_s * -math.expm1(-gain), search.costs.screening(config)
    return (
        f"another run takes {cost_s:.0f} s and what it may find would save {saved_s:.0f} s "
        f"of the {steps} steps planned"
    )


def _step_times(study: Study) -> list[float]:
    return [t.measurement.step_time_s.value for t in study.baseline if t.measurement]


def _whole_patience(search: _Search) -> int:
    """Where others were believed first, as many again as that took are the search's own."""
    patience = _patience(search)
    return patience + patience // 2 if beliefs(search.study).first else patience


def _on_its_own(search: _Search) -> _Search:
    """Without what earlier studies tell, where that has led nowhere for half of the patience."""
    if search.model is search.own or not _no_progress(search, _patience(search) // 2):
        return search
    return replace(search, model=search.own)


def _no_progress(search: _Search, patience: int) -> bool:
    """The last so many refine trials brought nothing new."""
    # What is run again, or for less memory, looks for nothing faster.
    others = (_AGAIN, _FRONT)
    told = [t for t in search.study.told(Stage.START, Stage.REFINE) if not t.reason.startswith(others)]
    refined = [t for t in told if t.stage is Stage.REFINE]
    if len(refined) < patience:
        return False
    last = {t.number for t in refined[-patience:]}
    recent = {t.config for t in refined[-patience:]} - {t.config for t in told if t.number not in last}
    before = max((y for c, y in search.model.seen.items() if c not in recent), default=0.0)
    return max((search.model.seen.get(c, -math.inf) for c in recent), default=before) <= before + _HELPS


# Confirm: cycles of baseline and finalists.


def _confirming(study: Study) -> bool:
    return any(t.stage is Stage.CONFIRM for t in study.trials)


def _measured_baselines(study: Study) -> list[Config]:
    return [t.config for t in study.baseline if t.measurement]


def _confirm(study: Study, remaining_s: float, parts: Parts) -> Proposal | None:
    if study.open_trials:
        return None
    limit = study.spec.budget.trials
    if limit is not None and len(study.trials) >= limit:
        return None
    costs = Costs.of(study)
    group, asked = _last_cycle(study)
    if group and (Stage.CONFIRM, group) not in study.cut:
        # Who takes part is settled by the cycles before, so that it cannot change within one.
        before = _before(study, group)
        past = _compared(before)
        active = _active(past, _members(before, past, study, costs, remaining_s, parts), group - 1)
        running_s = sum(t.seconds for t in study.told(Stage.CONFIRM) if t.group == group)
        focused = _focused(past, active, before, remaining_s + running_s, group - 1, parts)
        # Seconds between runs may tip the reckoning; who has run in this cycle stays in it.
        active = active if any(c in active and c not in focused for c in asked) else focused
        following = _rest_of_cycle(group, asked, active, costs, remaining_s)
        if following is not None:
            return _cycle_proposal(costs, group, following, active, remaining_s, _given_up(past, parts))
    now = _compared(study)
    if under_way(study, costs) or group >= _CYCLES:
        # A winner is taken apart as soon as it is one; what is left then shares the cycles that follow.
        apart = next_ablation(study, costs, remaining_s)
        if apart is not None:
            return apart
    active = _active(now, _members(study, now, study, costs, remaining_s, parts), group)
    active = _focused(now, active, study, remaining_s, group, parts)
    if active and group < _MOST_CYCLES:
        following = _first_of_cycle(group + 1, active, costs, remaining_s)
        if following is not None:
            return _cycle_proposal(costs, group + 1, following, active, remaining_s, _given_up(now, parts))
    return None


def _before(study: Study, group: int) -> Study:
    return replace(
        study, trials=tuple(t for t in study.trials if t.stage is not Stage.CONFIRM or t.group < group)
    )


def _last_cycle(study: Study) -> tuple[int, list[Config]]:
    trials = [t for t in study.trials if t.stage is Stage.CONFIRM]
    group = max((t.group for t in trials), default=0)
    return group, [t.config for t in trials if t.group == group]


def _leaders(
    study: Study,
    model: ThroughputModel | None = None,
    *,
    out: frozenset[Config] = frozenset(),
    parts: Parts = DEFAULT,
) -> tuple[Config, ...]:
    """The fastest of each kind by what the model makes of the screening runs, best first.

    The first stays as it is: pairs tell it from a simpler one. The others lose the changes that bring
    less than half a per cent together by the model.
    """
    space = study.space
    if model is None and space is not None:
        model = ThroughputModel.of(study, space, pairs=parts.pair_terms)
    simpler = "none" if parts.ties_after_pairs else "instead"
    if model is None or space is None:
        return finalists(study, out=out, simpler=simpler)
    rates = {c: model.base * math.exp(model.predict(c)[0]) for c in model.seen}
    idle = _NOTHING if parts.ties_after_pairs else _IDLE
    chosen: list[Config] = []
    for config in finalists(study, out=out, rates={**rates, _BASE: model.base}, simpler=simpler):
        is_told_apart = parts.ties_after_pairs and not chosen and space.effect(config) is not Effect.TRAINING
        part = None if is_told_apart else _without_idle(study, space, model, config, out, idle)
        wanted = part or config
        if wanted not in chosen:
            chosen.append(wanted)
    return tuple(chosen)


def _finalists(
    study: Study, *, out: frozenset[Config] = frozenset(), parts: Parts = DEFAULT
) -> tuple[Config, ...]:
    """The leaders, and last a simpler one that the model holds for as fast as the first."""
    space = study.space
    model = None if space is None else ThroughputModel.of(study, space, pairs=parts.pair_terms)
    chosen = _leaders(study, model, out=out, parts=parts)
    if not parts.ties_after_pairs or model is None or space is None or not chosen:
        return chosen
    if space.effect(chosen[0]) is Effect.TRAINING:
        return chosen
    twin = _without_idle(study, space, model, chosen[0], out, _IDLE)
    return chosen if twin is None or twin in chosen else (*chosen, twin)


def _without_idle(
    study: Study,
    space: SearchSpace,
    model: ThroughputModel,
    config: Config,
    out: frozenset[Config],
    idle: float,
) -> Config | None:
    """The config without what brings less than this by the model; None where that cannot take its place."""
    part = _trimmed(space, model, config, idle=idle)
    lost = part in out or any(t.failure and t.failure.kind.teaches for t in study.of(part))
    keeps = space.effect(part) is space.effect(config)
    return None if lost or not keeps else part


def shortlist(study: Study, parts: Parts = DEFAULT) -> tuple[Config, ...]:
    """Finalists as of now, best first: what a search whose screening ended here would confirm."""
    return _finalists(study, parts=parts)


def _members(
    before: Study,
    past: Sequence[Comparison],
    study: Study,
    costs: Costs,
    remaining_s: float,
    parts: Parts,
) -> tuple[Config, ...]:
    """Finalists by the cycles before, best first; at first as many as four cycles can be paid for."""
    cycles = [t for t in before.trials if t.stage is Stage.CONFIRM]
    # A cycle that was cut may not have come to all of them.
    began = {t.config for t in cycles if (Stage.CONFIRM, t.group) not in study.cut}
    out = _ruled_out(past, parts)
    alike = _as_hopeless(before, past, parts) - began
    chosen = _finalists(before, out=frozenset(out | alike), parts=parts)
    if began:
        failed = broken(before)
        replaced = bool(out) or _failed(before) or not began.isdisjoint(failed)
        kept = tuple(c for c in chosen if c in began or replaced)
        if replaced and parts.ties_after_pairs:
            # Who stood beside one that is gone goes on without it.
            gone = out | failed.keys()
            others = (t.config for t in cycles if t.config in began and not t.config.is_baseline)
            others = (c for c in others if c not in gone and may_win(before, c))
            kept = tuple(dict.fromkeys((*kept, *others)))
        kept = _with_time_for(kept, before, study, remaining_s)
        left = without_idle(before)
        return kept if left is None or left in out or left in failed or left in kept else (*kept, left)
    whole = remaining_s + sum(t.seconds for t in study.trials if t.stage is Stage.CONFIRM)
    limit = study.spec.budget.trials
    kept = chosen
    if limit is not None:
        left_over = limit - sum(1 for t in study.trials if t.stage is not Stage.CONFIRM)
        kept = chosen[: max(1, min(_most_members(limit), left_over // _CYCLES - 1))]
    while len(kept) > 1 and _CYCLES_WITH_MORE * costs.cycle(kept) > whole:
        kept = kept[:-1]
    return kept


def _with_time_for(
    kept: tuple[Config, ...], before: Study, study: Study, remaining_s: float
) -> tuple[Config, ...]:
    """Of those that would come in late the first, and as many as still get the pairs that a claim needs.

    Counted from the beginning of a cycle under way, so that it answers alike throughout the cycle.
    """
    confirmed = [t for t in before.trials if t.stage is Stage.CONFIRM]
    whole = [t for t in confirmed if (t.stage, t.group) not in study.cut]
    first, last = min(t.group for t in whole), max(t.group for t in confirmed)
    runs = Counter(t.config for t in whole)
    early = {t.config for t in whole if t.group == first}
    late = [c for c in kept if c not in early]
    fresh = [c for c in late if not runs[c]]
    costs, limit = Costs.of(before), study.spec.budget.trials
    running = [t for t in study.trials if t.stage is Stage.CONFIRM and t.group > last]
    left_s = remaining_s + sum(t.seconds for t in running)
    asked = {t.config for t in running}
    dropped: set[Config] = set()
    while fresh and len(late) - len(dropped) > 1 and fresh[-1] not in asked:
        open_ones = [c for c in late if c not in dropped and runs[c] < _CYCLES]
        fits = _CYCLES * costs.cycle(open_ones) <= left_s
        if limit is not None:
            fits = fits and _CYCLES * (1 + len(open_ones)) <= limit - len(study.trials) + len(running)
        if fits:
            break
        dropped.add(fresh.pop())
    return tuple(c for c in kept if c not in dropped)


def _failed(study: Study) -> bool:
    # A run that was given up with its driver says nothing of its config.
    failures = [t.failure for t in study.told(Stage.CONFIRM) if t.failure is not None]
    return any(failure.kind.family is not Family.CANCELLED for failure in failures)


def _ruled_out(compared: Sequence[Comparison], parts: Parts) -> set[Config]:
    """Finalists that are slower, or worse in loss, beyond doubt, and those that were given up."""
    return {c.config for c in _given_up(compared, parts)} | {
        c.config
        for c in compared
        if len(c.logs) >= _CYCLES
        and (c.speedup.high < 1.0 or c.loss.verdict == "fail" or c.loss.rule or _wastes(c))
    }


def _wastes(compared: Comparison) -> bool:
    """It takes more energy per sample than the script, where the least is wanted."""
    return compared.saving is not None and compared.saving.high < 1.0


def _given_up(compared: Sequence[Comparison], parts: Parts) -> list[Comparison]:
    """Finalists whose loss stays unclear, and which the runs still to come would hardly clear."""
    return [
        c
        for c in compared
        if parts.gives_up
        and len(c.logs) >= _CYCLES
        and c.effect is not Effect.EXACT
        and c.loss.verdict == "unclear"
        and not c.loss.can_clear
    ]


def _as_hopeless(study: Study, compared: Sequence[Comparison], parts: Parts) -> set[Config]:
    """Configs with all that may touch the loss of one that was given up: they would fare no better."""
    space = study.space
    if space is None:
        return set()
    touching = [
        {(k, v) for k, v in c.config.items() if space.effect(Config({k: v})) is not Effect.EXACT}
        for c in _given_up(compared, parts)
    ]
    seen = {t.config for t in study.told(Stage.START, Stage.REFINE)}
    return {c for c in seen if any(changes <= set(c.items()) for changes in touching)}


def _compared(study: Study) -> list[Comparison]:
    return compare(study) if _confirming(study) else []


def _active(past: Sequence[Comparison], members: Sequence[Config], cycles: int) -> tuple[Config, ...]:
    """Members that more cycles can still tell something about; the best is the last to leave."""
    if cycles < _CYCLES:
        return tuple(members)
    compared = {c.config: c for c in past}
    open_ones = [c for c in members if c not in compared or not _settled(compared[c], cycles)]
    if cycles >= _PLANNED_CYCLES:
        open_ones = [c for c in open_ones if c == members[0] or len(_logs(compared, c)) < _PLANNED_CYCLES]
    if any(c not in compared for c in open_ones):
        # Who comes late is compared with the first as well, in the same cycles.
        return tuple(c for c in members if c == members[0] or c in open_ones)
    return tuple(open_ones)


def _focused(
    past: Sequence[Comparison],
    active: tuple[Config, ...],
    before: Study,
    left_s: float,
    cycles: int,
    parts: Parts,
) -> tuple[Config, ...]:
    """The first alone where the time left shows its gain only so; else all of them.

    To give more pairs to what reads well changes the level of its last look by about a hundredth of it
    (docs/decisions/0057).

    Args:
        past: Of the cycles before.
        active: Who would take part, best first.
        before: The study without the cycle under way.
        left_s: At the begin of the cycle.
        cycles: There were so far.
        parts: Of the planner.
    """
    if not parts.focuses or cycles < _CYCLES or len(active) < 2:
        return active
    compared, costs = {c.config: c for c in past}, Costs.of(before)
    limit = before.spec.budget.trials

    def reaches(config: Config, members: Sequence[Config]) -> bool:
        found = compared.get(config)
        if found is None or found.wanted_pairs is None:
            return False
        more = min(left_s // max(0.1, costs.cycle(members)), _MOST_CYCLES - cycles)
        if limit is not None:
            more = min(more, (limit - len(before.trials)) // (1 + len(members)))
        return found.speedup.n + more >= found.wanted_pairs

    first = active[0]
    return active if reaches(first, active) or not reaches(first, [first]) else (first,)


def _logs(compared: dict[Config, Comparison], config: Config) -> dict[int, float]:
    return dict(compared[config].logs) if config in compared else {}


def _settled(compared: Comparison, cycles: int) -> bool:
    speedup = compared.speedup
    if speedup.n < _CYCLES:
        return False
    saving = compared.saving
    if saving is not None and saving.low <= 1.0 and saving.high >= _NO_GAIN:
        return False
    width = speedup.high - speedup.low
    judged = compared.loss.verdict != "unclear" or bool(compared.loss.rule) or compared.effect is Effect.EXACT
    if speedup.low > 1.0 and judged:
        # The interval allows for so many looks, at its own pairs: it may have come late, or lost some.
        clear = width <= _CLEAR_WIDTH * speedup.value or width <= _CLEAR_SHARE * (speedup.value - 1.0)
        return clear and compared.is_early
    return speedup.high < _NO_GAIN and cycles >= _PLANNED_CYCLES - 1


def _order(group: int, members: Sequence[Config]) -> list[Config]:
    line = [_BASE, *members]
    return line if group % 2 else line[::-1]


def _first_of_cycle(group: int, members: Sequence[Config], costs: Costs, remaining_s: float) -> Config | None:
    """Where the cycle starts; late finalists are left out where the time is short."""
    order = _order(group, members)
    if costs.cycle(members[:1]) > remaining_s:
        return None
    if group % 2:
        return order[0]
    for position, config in enumerate(order[:-1]):
        if sum(costs.confirming(c) for c in order[position:]) <= remaining_s or config == members[0]:
            return config
    return None


def _rest_of_cycle(
    group: int, asked: Sequence[Config], members: Sequence[Config], costs: Costs, remaining_s: float
) -> Config | None:
    """The next member of a cycle under way: only such as come after all that were asked in it."""
    order = _order(group, members)
    places = [order.index(c) for c in asked if c in order]
    if not places:
        return None
    wanted = order[max(places) + 1 :]
    needed = [c for c in wanted if c.is_baseline]
    for config in wanted:
        after = sum(costs.confirming(c) for c in needed if c != config)
        if costs.confirming(config) + after <= remaining_s:
            return config
    return None


def _cycle_proposal(
    costs: Costs,
    group: int,
    config: Config,
    members: Sequence[Config],
    remaining_s: float,
    given_up: Sequence[Comparison],
) -> Proposal:
    fidelity = costs.fidelity(Stage.CONFIRM, config, remaining_s=remaining_s, reserve_s=0.0)
    what = "Your script" if config.is_baseline else "A finalist"
    reason = f"{what} in confirmation cycle {group}; finalists: {len(members)}."
    for gone in given_up:
        reason += f" {gone.config.text()} makes room: {gone.loss.reason}"
    return Proposal(
        stage=Stage.CONFIRM, config=config, fidelity=fidelity, reason=reason, seed=group + 1, group=group
    )
