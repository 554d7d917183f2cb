"""Rivals that `--sampler` does not offer: what others do instead, on the same draws and by the same account.

Bare ones are started as their own users would start them: the unchanged script once, then trial after trial
until their ideas or the time end; no finalists, no confirmation, what read fastest is their word. They get
the window and the time limits of our screening runs, and end where the next run would not fit any more.
The others take the place of a sampler in the search's own frame. README.md says what favours each of them.
"""

import itertools
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.compare.amortised_rate import screened
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Proposal, Stage
from autotune.search.costs import Costs
from autotune.search.models.memory_model import MemoryModel
from autotune.search.models.throughput_model import loader_knobs, wait_frac
from autotune.search.samplers.optuna_sampler import OptunaSampler
from autotune.search.screening.feasible import FITS
from autotune.search.stages import Staged
from autotune.search.strategy import Sampler, Strategy
from autotune.testing.replay_runner import ReplayRunner

WAITS = 0.1
SWEEPS = 8
REDUCTION = 4
"""Of successive halving; Ray Tune's default, as is a single bracket."""
RUNGS = (1 / REDUCTION, 1.0)
"""Shares of the longest window at which a trial is looked at; the last is its end."""
LEAST_GAIN = 1.03
"""A larger micro-batch has to be so many times as fast for the sweep to go on."""


class Bare(Strategy):
    """The unchanged script, then whatever `propose` says, one process at a time."""

    @abstractmethod
    def propose(self, study, space):
        """The next config, or None at the end."""

    def ask(self, study, remaining_s):
        if study.stopped or remaining_s <= 0 or study.open_trials:
            return None
        costs = Costs.of(study)
        if not study.trials:
            return _proposal(costs, Stage.BASELINE, Config(), remaining_s)
        if study.space is None or not any(t.measurement for t in study.baseline):
            return None
        config = self.propose(study, study.space)
        if config is None or not costs.fits(costs.screening(config), remaining_s):
            return None
        return _proposal(costs, Stage.REFINE, config, remaining_s)

    def is_finished(self, study, remaining_s):
        return not study.open_trials and self.ask(study, remaining_s) is None


def _proposal(costs, stage, config, remaining_s):
    fidelity = costs.fidelity(stage, config, remaining_s=remaining_s, reserve_s=0.0)
    return Proposal(stage=stage, config=config, fidelity=fidelity, reason="A rival's.")


def _requested(study):
    return {t.config for t in study.trials}


# Optuna without our search ---------------------------------------------------------------------


class BareTpe(Bare):
    """Optuna's TPE, no config proposed twice.

    Args:
        knows_failures: Failures are reported as the worst value with a violated constraint; else as failed,
            which Optuna's samplers pass over.
        has_mask: What our memory model gives less than an even chance to fit is not run.
    """

    def __init__(self, *, knows_failures, has_mask):
        self._knows_failures, self._has_mask = knows_failures, has_mask
        self._sampler = OptunaSampler("tpe")

    def propose(self, study, space):
        requested, known = _requested(study), study
        memory = MemoryModel.of(study, space) if self._has_mask else None
        if not self._knows_failures:
            known = replace(study, trials=tuple(t for t in study.trials if t.failure is None))

        def may(config):
            return config not in requested and (memory is None or memory.fits(config) >= FITS)

        return self._sampler.propose(known, space, len(study.trials), may)


# Ray Tune's ASHA -------------------------------------------------------------------------------


class Shuffled(Bare):
    """All configs in an order that the seed draws."""

    def propose(self, study, space):
        requested, line = _requested(study), list(space.enumerate())
        random.Random(f"{study.spec.seed}/shuffled").shuffle(line)
        return next((config for config in line if config not in requested), None)


class RungRunner(ReplayRunner):
    """A process is looked at when a part of its window is over, and ended there if it is not among the best.

    That is asynchronous successive halving as Ray Tune has it (`AsyncHyperBandScheduler`): at a rung a trial
    ends if it reads below the quantile 1 - 1 / reduction of what other trials read there, and the first goes
    on in any case. A process that goes on has paid for its start already. One worker: rungs know whatever
    was begun before. The unchanged script runs to its end and stands in no rung.
    """

    def __init__(self, table, **more):
        super().__init__(table, **more)
        self._read = [[] for _ in RUNGS]

    def play(self, assignment):
        (segment,) = assignment.segments
        if segment.config.is_baseline:
            yield from super().play(assignment)
            return
        whole, ended = segment.fidelity, []
        for rung, share in enumerate(RUNGS):
            window_s = share * whole.max_window_s
            part = replace(whole, min_window_s=window_s, max_window_s=window_s, min_steps=1, target_width=0.0)
            drawn, compiled = dict(self._requested), set(self._compiled)
            ended = list(super().play(replace(assignment, segments=(replace(segment, fidelity=part),))))
            outcome = ended[-1].outcome
            if not isinstance(outcome, Measurement):
                break
            if self._ends_here(rung, outcome.throughput.value) or share == RUNGS[-1]:
                break
            # The same process once more, further: what it draws hangs on these two alone.
            self._requested.clear()
            self._requested.update(drawn)
            self._compiled.clear()
            self._compiled.update(compiled)
        yield from ended

    def _ends_here(self, rung, rate):
        others = self._read[rung]
        ends = bool(others) and rate < quantile(others, 1 - 1 / REDUCTION)
        others.append(rate)
        return ends


def quantile(values, share):
    """Between neighbours in proportion, as numpy's percentile."""
    line = sorted(values)
    place = (len(line) - 1) * share
    below = int(place)
    above = min(below + 1, len(line) - 1)
    return line[below] + (place - below) * (line[above] - line[below])


# Recipes and sweeps ----------------------------------------------------------------------------


class Templates(Bare):
    """The micro-batch swept upwards within each template of number format and compiling, the rest left alone.

    A sweep ends at a failure, or where more brings less than three per cent.
    """

    def propose(self, study, space):
        requested, rates = _requested(study), screened(study)
        for template in _templates(space):
            before = None
            for config in _by_batch(space, template):
                if config not in requested:
                    return config
                rate = rates.get(config)
                if rate is None or (before is not None and rate < LEAST_GAIN * before):
                    break
                before = rate
        return None


class BatchFinder(Bare):
    """The micro-batch upwards until one fails; the first failure ends it."""

    def propose(self, study, space):
        requested, rates = _requested(study), screened(study)
        for config in _by_batch(space, {}):
            if config not in requested:
                return config
            if config not in rates:
                return None
        return None


def _templates(space):
    """Number formats, each with every way of compiling; the script's own come last."""
    knobs = [knob for knob in ("precision", "compile_mode") if knob in space.dimensions]
    for values in itertools.product(*(_own_last(space.dimensions[knob]) for knob in knobs)):
        yield dict(zip(knobs, values, strict=True))


def _own_last(dimension):
    return sorted(dimension.values, key=lambda value: value == dimension.own)


def _by_batch(space, template):
    """Configs of a template that there are, the smallest micro-batch first."""
    batch = space.dimensions.get("batch_size")
    wanted = [{**template, "batch_size": value} for value in batch.values] if batch else [template]
    completed = (space.complete(one) for one in wanted)
    return [config for config in completed if isinstance(config, Config)]


class Recipe(Bare):
    """What an expert sets without a search: a fixed list by device, each item run once.

    An item that is not among the configs gives way to the one that differs from it in the fewest knobs.
    """

    def propose(self, study, space):
        requested = _requested(study)
        for item in recipes(study.facts, space):
            config = nearest(space, item)
            if config not in requested:
                return config
        return None


def recipes(facts, space):
    """Settings by device, what the space has of them; the first compiles, the second does not."""
    host = facts.host
    line = {"channels_last": True, "fused_optimizer": True, "persistent_workers": True}
    if host.has_cuda:
        line |= {"precision": "bf16", "num_workers": 4, "pin_memory": True, "tf32": "high"}
    else:
        line["num_workers"] = _most(space, "num_workers", host.cpus)
        line["threads"] = host.physical_cores
        if {"amx_bf16", "avx512_bf16"} & set(host.cpu_flags):
            line["precision"] = "bf16"
    for compile_mode in ("default", "off"):
        item = {**line, "compile_mode": compile_mode}
        yield {k: v for k, v in item.items() if k in space.dimensions and v in space.dimensions[k].values}


def _most(space, knob, limit):
    """The largest value of a knob up to a limit, None without one."""
    values = space.dimensions[knob].values if knob in space.dimensions else ()
    return max((v for v in values if v <= limit), default=None)


def nearest(space, wanted):
    """The config that differs from what is wanted in the fewest knobs."""
    free = space.free()

    def away(config):
        return sum(config.get(d.knob, d.own) != wanted.get(d.knob, d.own) for d in free)

    return min(space.enumerate(), key=lambda config: (away(config), config.canonical()))


class PriorDescent(Sampler):
    """Coordinate descent with what is known beforehand: starts first, knobs in order of expected gain.

    The knobs of the loader come first where the loop waits for data, else last, as in the planner's start.
    Within the frame our masks of memory and failures keep it from what would not run.
    """

    def propose(self, study, space, count_seed, may=None):
        requested, rates = _requested(study), screened(study)

        def is_new(config):
            return config not in requested and (may is None or may(config))

        start = next((config for config in space.starts if is_new(config)), None)
        if start is not None:
            return start
        waits = wait_frac(study) > WAITS
        knobs = sorted(space.free(), key=lambda d: (d.knob in loader_knobs()) is not waits)
        here = max([Config(), *space.starts], key=lambda config: rates.get(config, 0.0))
        for _ in range(SWEEPS):
            before = here
            for knob in knobs:
                line = _line(space, here, knob)
                new = next((config for config in line if is_new(config)), None)
                if new is not None:
                    return new
                here = max([here, *line], key=lambda config: rates.get(config, 0.0))
            if here == before:
                return None
        return None


def _line(space, config, knob):
    """The configs that differ from this one in one knob."""
    wanted = space.resolved_free(config)
    completed = (space.complete({**wanted, knob.knob: value}) for value in knob.values)
    return list(dict.fromkeys(c for c in completed if isinstance(c, Config) and c != config))


# By name ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rival:
    """How a rival is made: its strategy, and what runs its processes where that is not the plain replay."""

    make: Callable[[], Strategy]
    about: str
    is_bare: bool = True
    runner: Callable[..., ReplayRunner] = ReplayRunner


RIVALS = {
    "tpe-bare": Rival(
        lambda: BareTpe(knows_failures=False, has_mask=False),
        "Optuna's TPE, failures told as failed, no mask",
    ),
    "tpe-masked": Rival(
        lambda: BareTpe(knows_failures=True, has_mask=True),
        "Optuna's TPE, failures as constraints, our memory mask",
    ),
    "asha": Rival(Shuffled, "Ray Tune's ASHA over random draws, on parts of a window", runner=RungRunner),
    "templates": Rival(Templates, "templates of number format and compiling, micro-batch swept in each"),
    "batch-finder": Rival(BatchFinder, "the micro-batch doubled until one fails"),
    "coordinate-prior": Rival(
        lambda: Staged(PriorDescent(), pure_sampler=True),
        "coordinate descent in our order of knobs, with our masks",
        is_bare=False,
    ),
    "expert": Rival(Recipe, "a fixed recipe by device, no search"),
}
"""By the name that stands in the result files."""
