"""What starting costs, weighed over the planned run: compiling once, the loader anew every epoch. Pure.

    T(run) = compile + epochs * epoch start + steps * step

A config whose compile has not paid back by the end of the run that is planned is slower for that run,
however fast its steps are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.rounds import alike_cycles
from autotune.model.config import Config
from autotune.model.run_length import planned_steps, steps_per_epoch
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study

LEAST_COMPILE_S = 1.0
"""Less than this is nothing that anybody waits for."""
LEAST_SHARE = 0.1
"""More compiling than the script does by itself has to stand out of how that differs from run to run."""
_MANY_STARTS = 3.0
_BASE = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """When a compile has paid back.

    Args:
        compile_s: Of an empty cache.
        warm_s: Of a cache that holds the result, as on the machine of the search; None where it was
            never seen.
        steps: Steps of the config after which it is ahead of the unchanged script; None: never.
        seconds: The same in time from the start of training.
        run_s: What the planned run takes with the unchanged script; None where its length is not known.
        charged_s: Seconds of this compile that pairs are charged: the shortest that was seen.
    """

    compile_s: float
    warm_s: float | None
    steps: int | None
    seconds: float | None
    run_s: float | None
    charged_s: float = 0.0

    def kept(self, speedup: float) -> float:
        """Share of a speedup, above 0 and at most 1, that is left over the planned run.

        It is 1 where the length of that run is not known.

        Args:
            speedup: Ratio, above 0, by pairs, which have paid the shortest compile that was seen.
        """
        if self.run_s is None:
            return 1.0
        trained_s = self.run_s / speedup
        return trained_s / (trained_s + max(0.0, self.compile_s - self.charged_s))

    @property
    def is_late(self) -> bool:
        """The planned run is over before it has paid back; False where its length is not known."""
        if self.run_s is None:
            return False
        return self.seconds is None or self.seconds > self.run_s


def break_even(study: Study, config: Config) -> BreakEven | None:
    """When this config's compile has paid back; None where it does not compile, or was not measured."""
    ours = [t.measurement for t in study.of(config) if t.measurement]
    theirs = [t.measurement for t in study.of(_BASE) if t.measurement]
    if not ours or not theirs or config.is_baseline:
        return None
    # What the script compiles itself is spent with and without the config.
    own_s = max(m.all_compile_s for m in theirs)
    compile_s = max(m.all_compile_s for m in ours) - own_s
    if compile_s < max(LEAST_COMPILE_S, LEAST_SHARE * own_s):
        return None
    warm = [m.all_compile_s for m in ours if not m.cold_compile]
    base = _rate(study, _confirmed(study, _BASE) or theirs)
    ratio = _paired_ratio(study, config)
    rate = _rate(study, _confirmed(study, config) or ours) if ratio is None else base * ratio
    run_samples = _planned_samples(study, theirs)
    run_s = run_samples / base if run_samples and base > 0 else None
    steps = seconds = None
    if min(base, rate) > 0 and rate > base:
        # rate * (t - compile) = base * t
        seconds = compile_s * rate / (rate - base)
        batch = next((m.effective_batch for m in ours if m.effective_batch > 0), 1.0)
        steps = math.ceil((seconds - compile_s) * rate / batch)
    return BreakEven(
        compile_s=compile_s,
        warm_s=statistics.median(warm) if warm else None,
        steps=steps,
        seconds=seconds,
        run_s=run_s,
        charged_s=max(0.0, min(m.all_compile_s for m in ours) - min(m.all_compile_s for m in theirs)),
    )


def over_epochs(study: Study, measurement: Measurement) -> float:
    """Factor on the steady throughput: as many epoch starts as a real run has, in place of those seen.

    A window shorter than an epoch holds no start of the loader, or one too many; over a real run there is
    one per epoch. 1.0 where nothing is known of starts, or of the length of an epoch.
    """
    each_s = measurement.extra.get("epoch_start_s", 0.0)
    step_s = measurement.step_time_s.value
    if each_s <= 0:
        return 1.0
    per_epoch = steps_per_epoch(study)
    if not per_epoch or not measurement.steps or step_s <= 0:
        return 1.0
    if measurement.extra.get("epoch_starts", 0.0) >= _MANY_STARTS:
        return 1.0  # the window shows how often the loader really starts
    own = _own_batch(study)
    if own and measurement.effective_batch > 0:
        per_epoch *= own / measurement.effective_batch
    seen = measurement.extra.get("epoch_starts", 0.0) / measurement.steps
    real_s = step_s + (1.0 / per_epoch - seen) * each_s
    # What is taken off was in the figure; a burst of starts cannot make a step free.
    return step_s / max(real_s, 0.2 * step_s)


def _paired_ratio(study: Study, config: Config) -> float | None:
    """How much faster its steps are, from the same cycles; None without a pair.

    Means over runs of different cycles differ by what the machine did meanwhile as well.
    """
    logs: list[float] = []
    for runs in alike_cycles(study, Stage.CONFIRM, _BASE).values():
        pair = [runs[c].measurement for c in (config, _BASE) if c in runs]
        rates = [_rate(study, [measured]) for measured in pair if measured is not None]
        if len(rates) == 2 and min(rates) > 0:
            logs.append(math.log(rates[0] / rates[1]))
    return math.exp(statistics.fmean(logs)) if logs else None


def _rate(study: Study, runs: Sequence[Measurement]) -> float:
    return statistics.fmean(m.throughput.value * over_epochs(study, m) for m in runs)


def _confirmed(study: Study, config: Config) -> list[Measurement]:
    return [t.measurement for t in study.of(config, Stage.CONFIRM) if t.measurement]


def _planned_samples(study: Study, runs: Sequence[Measurement]) -> float | None:
    steps = planned_steps(study)
    batch = next((m.effective_batch for m in runs if m.effective_batch > 0), 0.0)
    unit = runs[0].throughput.unit
    return None if not steps else steps * (batch if unit == "samples/s" and batch else 1.0)


def _own_batch(study: Study) -> float:
    batches = [t.measurement.effective_batch for t in study.of(_BASE) if t.measurement]
    return next((b for b in batches if b > 0), 0.0)
