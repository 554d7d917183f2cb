"""Usual learning rate changes for another effective batch: reported, never applied. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.loss.effective_batch_check import ALIKE_FRAC
from autotune.model.config import Config

if TYPE_CHECKING:
    from autotune.model.study import Study

_ALIKE: Final = 0.02
"""Batches closer than this, relatively, are the same; the last one of a pass is often short."""
RATE: Final = "learning_rate"
"""Key in `Measurement.extra`: the largest rate of its parameter groups."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rate goes with this power of the effective batch."""

    names: tuple[str, ...]
    power: float
    words: str
    source: str


_RULES: Final = (
    _Rule(names=("adam", "rmsprop"), power=0.5, words="the square root of that", source="arXiv 2205.10287"),
    _Rule(names=("sgd",), power=1.0, words="in proportion", source="arXiv 1706.02677"),
)
_OTHERS: Final = ("sign", "muon")
"""Parts of names of optimizers that bound each update by its sign or norm, which neither rule is about."""


def learning_rate_advice(study: Study, config: Config) -> str:
    """Return the advice on the learning rate of a config with another effective batch; else empty.

    The rules are from publications and were not measured here. The rate is proportional for SGD (Goyal and
    others, arXiv 1706.02677), and follows the square root for Adam and similar ones (Malladi and others,
    arXiv 2205.10287).

    Args:
        study: Its runs give both batches, the first run of the script its optimizer.
        config: The recommended config.
    """
    own, ours = _batch(study, Config()), _batch(study, config)
    if own <= 0 or ours <= 0 or abs(ours / own - 1.0) <= _ALIKE:
        return ""
    ratio = ours / own
    moved = _rate(study, config) / (_rate(study, Config()) or math.inf)
    if moved and abs(moved - 1.0) > ALIKE_FRAC:
        return (
            f"Learning rate: the effective batch is {ratio:.3g} times your script's, and your script itself "
            f"made its rate {moved:.3g} times as high with it."
        )
    begins = (
        f"Learning rate: the effective batch is {ratio:.3g} times your script's, and this ran with your rate."
    )
    name = _optimizer(study)
    rule = _rule(name)
    if rule is None:
        return f"{begins} Which one goes with it is not known for {name or 'this optimizer'}: try some."
    slowly = ", reached slowly at the start" if ratio > 1.0 and rule.power == 1.0 else ""
    return (
        f"{begins} Usual with {name} is {rule.words}, {ratio**rule.power:.3g} times your rate{slowly} "
        f"({rule.source}). That was not measured, and nothing sets it."
    )


def _rule(name: str) -> _Rule | None:
    lower = name.lower()
    if any(part in lower for part in _OTHERS):
        return None
    return next((rule for rule in _RULES if any(part in lower for part in rule.names)), None)


def _optimizer(study: Study) -> str:
    """Class of the one optimizer; empty where there are several, or none was seen."""
    run = study.facts.run if study.facts is not None else None
    found = run.optimizer if run is not None else None
    return found.name if found is not None and found.count == 1 else ""


def _rate(study: Study, config: Config) -> float:
    """Learning rate that a config ran with; 0 where it is not known."""
    seen = [t.measurement.extra.get(RATE, 0.0) for t in study.of(config) if t.measurement]
    return statistics.median(seen or [0.0])


def _batch(study: Study, config: Config) -> float:
    seen = [t.measurement.effective_batch for t in study.of(config) if t.measurement]
    return statistics.median([b for b in seen if b > 0] or [0.0])
