"""Prediction of whether a config fits into memory, learned from peaks and out-of-memory failures; pure.

log2(peak) is a sum of a static part, a share of the doublings of the micro-batch and one term per changed
value, fitted by ridge with priors. Running out is a censored observation: a peak somewhat above the limit.
For monotone knobs, a config with more than one that ran out is excluded with certainty.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.knobs.registry import builtin
from autotune.model.trial import Family
from autotune.search.models.linear import Ridge

if TYPE_CHECKING:
    from autotune.model.config import Config, Value
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study

_SAFETY = 0.97
_OOM_EXCESS = 1.15
_OOM_SD = 0.14
_PEAK_SD = 0.05
_MODEL_SD = 0.08
_SLOPE = (0.5, 0.35)
_TERM_SD = 0.4


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Memory model of one study at one moment; built by `MemoryModel.of`."""

    space: SearchSpace
    limit_bytes: float | None
    ran_out: tuple[Config, ...]
    fit: Ridge | None
    own_batch: float

    @classmethod
    def of(cls, study: Study, space: SearchSpace) -> MemoryModel:
        """Fit the model to every peak and every out-of-memory failure of the study."""
        limit = memory_limit(study)
        ran_out = tuple(
            dict.fromkeys(
                t.config for t in study.finished() if t.failure and t.failure.kind.family is Family.OOM
            )
        )
        own = _number(space.dimensions["batch_size"].own) if "batch_size" in space.dimensions else 0.0
        model = cls(space, limit, ran_out, None, own)
        rows: list[dict[str, float]] = []
        values: list[float] = []
        noise: list[float] = []
        for trial in study.finished():
            peak = trial.measurement.memory.peak_bytes if trial.measurement else None
            if peak:
                rows.append(model.features(trial.config))
                values.append(math.log2(peak) - model.prior(trial.config))
                noise.append(_PEAK_SD)
        if not rows:
            return model
        if limit is not None:
            above = math.log2(_OOM_EXCESS * limit)
            rows.extend(model.features(c) for c in ran_out)
            values.extend(above - model.prior(c) for c in ran_out)
            noise.extend(_OOM_SD for _ in ran_out)
        spread = {"": 20.0, "doublings": _SLOPE[1]}
        fit = Ridge.of(rows, values, noise, spread, _TERM_SD)
        return cls(space, limit, ran_out, fit, own)

    def features(self, config: Config) -> dict[str, float]:
        """Return columns of the ridge: intercept, doublings of the micro-batch, one per changed value."""
        found = {"": 1.0, "doublings": self._doublings(config)}
        for knob, value in config.items():
            if knob != "batch_size" and _use(knob) != "none":
                found[f"{knob}={value!r}"] = 1.0
        return found

    def prior(self, config: Config) -> float:
        """Return expected doublings of the peak over the baseline's before any observation."""
        return _SLOPE[0] * self._doublings(config)

    def fits(self, config: Config) -> float:
        """Return the probability that the config stays below the limit; 0 if that is ruled out."""
        if any(self._holds_more(config, other) for other in self.ran_out):
            return 0.0
        if self.fit is None or self.limit_bytes is None:
            return 1.0
        mean, sd = self.fit.predict(self.features(config))
        spread = math.hypot(sd, _MODEL_SD)
        room = math.log2(_SAFETY * self.limit_bytes) - mean - self.prior(config)
        return statistics.NormalDist().cdf(room / spread)

    def peak_bytes(self, config: Config) -> float | None:
        """Return the expected peak; None if no peak was measured."""
        if self.fit is None:
            return None
        return 2.0 ** (self.fit.predict(self.features(config))[0] + self.prior(config))

    def _holds_more(self, config: Config, other: Config) -> bool:
        ours, theirs = self.space.resolved(config), self.space.resolved(other)
        for knob in set(ours) | set(theirs):
            mine, its = ours.get(knob), theirs.get(knob)
            if _use(knob) == "monotone":
                if _number(mine) < _number(its):
                    return False
            elif _use(knob) != "none" and mine != its:
                return False
        return True

    def _doublings(self, config: Config) -> float:
        batch = _number(config.get("batch_size"))
        return math.log2(batch / self.own_batch) if batch > 0 and self.own_batch > 0 else 0.0


def memory_limit(study: Study) -> float | None:
    """Return the tightest bound on peak memory: the user's, or the limit of the trials."""
    bounds = [c.at_most for c in study.spec.constraints if c.metric == "peak_memory"]
    if study.spec.max_memory_bytes is not None:
        bounds.append(float(study.spec.max_memory_bytes))
    limits = [t.measurement.memory.limit for t in study.finished() if t.measurement]
    bounds.extend(float(limit) for limit in limits if limit)
    return min(bounds, default=None)


def _use(knob: str) -> str:
    known = builtin().get(knob)
    return "any" if known is None else known.memory


def _number(value: Value | None) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
