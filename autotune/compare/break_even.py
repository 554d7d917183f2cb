"""Start-up costs over the planned run: one compile, and one loader start per epoch. Pure.

    T(run) = compile + epochs * epoch start + steps * step

A config whose compile does not pay back within the planned run is slower for it, however fast its steps are.
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
"""Shorter compile times are ignored."""
LEAST_SHARE = 0.1
"""Smallest additional compile time, as a share of the script's own, that exceeds its scatter."""
_MANY_STARTS = 3.0
_BASE = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The break-even point of a compile.

    Args:
        compile_s: With an empty cache.
        warm_s: With a cache that holds the result, as on the machine of the search; None if never measured.
        steps: Steps of the config after which it is ahead of the unchanged script; None: never.
        seconds: The same as time from the start of training.
        run_s: Duration of the planned run with the unchanged script; None if its length is unknown.
        charged_s: Compile time included in pairs: the shortest that was measured.
    """

    compile_s: float
    warm_s: float | None
    steps: int | None
    seconds: float | None
    run_s: float | None
    charged_s: float = 0.0

    def kept(self, speedup: float) -> float:
        """Return the share of a speedup that remains over the planned run; 1 if its length is unknown.

        Args:
            speedup: Ratio by pairs, above 0, which includes `charged_s`.
        """
        if self.run_s is None:
            return 1.0
        trained_s = self.run_s / speedup
        return trained_s / (trained_s + max(0.0, self.compile_s - self.charged_s))

    @property
    def is_late(self) -> bool:
        """Whether it pays back only after the planned run; False if the run's length is unknown."""
        if self.run_s is None:
            return False
        return self.seconds is None or self.seconds > self.run_s


def break_even(study: Study, config: Config) -> BreakEven | None:
    """Return the break-even point of a config; None if it does not compile or was not measured."""
    measured = [t.measurement for t in study.of(config) if t.measurement]
    unchanged = [t.measurement for t in study.of(_BASE) if t.measurement]
    if not measured or not unchanged or config.is_baseline:
        return None
    # Compilation by the script itself costs the same without the config.
    own_s = max(m.all_compile_s for m in unchanged)
    compile_s = max(m.all_compile_s for m in measured) - own_s
    if compile_s < max(LEAST_COMPILE_S, LEAST_SHARE * own_s):
        return None
    warm = [m.all_compile_s for m in measured if not m.cold_compile]
    base = _rate(study, _confirmed(study, _BASE) or unchanged)
    ratio = _paired_ratio(study, config)
    rate = _rate(study, _confirmed(study, config) or measured) if ratio is None else base * ratio
    run_samples = _planned_samples(study, unchanged)
    run_s = run_samples / base if run_samples and base > 0 else None
    steps = seconds = None
    if min(base, rate) > 0 and rate > base:
        # rate * (t - compile) = base * t
        seconds = compile_s * rate / (rate - base)
        batch = next((m.effective_batch for m in measured if m.effective_batch > 0), 1.0)
        steps = math.ceil((seconds - compile_s) * rate / batch)
    return BreakEven(
        compile_s=compile_s,
        warm_s=statistics.median(warm) if warm else None,
        steps=steps,
        seconds=seconds,
        run_s=run_s,
        charged_s=max(0.0, min(m.all_compile_s for m in measured) - min(m.all_compile_s for m in unchanged)),
    )


def is_late(study: Study, config: Config) -> bool:
    """Return whether the planned run does not pay back this config's compile."""
    paid = break_even(study, config)
    return paid is not None and paid.is_late


def over_epochs(study: Study, measurement: Measurement) -> float:
    """Return the factor on the steady throughput that accounts for one loader start per epoch.

    A window shorter than an epoch contains no loader start, or one too many. 1.0 if the cost of a start or
    the length of an epoch is unknown.
    """
    each_s = measurement.extra.get("epoch_start_s", 0.0)
    step_s = measurement.step_time_s.value
    if each_s <= 0:
        return 1.0
    per_epoch = steps_per_epoch(study)
    if not per_epoch or not measurement.steps or step_s <= 0:
        return 1.0
    if measurement.extra.get("epoch_starts", 0.0) >= _MANY_STARTS:
        return 1.0  # the window has the real frequency of loader starts
    own = _own_batch(study)
    if own and measurement.effective_batch > 0:
        per_epoch *= own / measurement.effective_batch
    observed = measurement.extra.get("epoch_starts", 0.0) / measurement.steps
    real_s = step_s + (1.0 / per_epoch - observed) * each_s
    # A burst of starts in the window must not make a step free.
    return step_s / max(real_s, 0.2 * step_s)


def _paired_ratio(study: Study, config: Config) -> float | None:
    """Return the ratio of a config's rate to the script's within cycles; None without a pair.

    Means over different cycles would include changes of the machine.
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
