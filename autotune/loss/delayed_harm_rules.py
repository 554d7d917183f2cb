"""Harm that a short trace of the loss cannot show, by knob and condition. Pure; standard library only.

The loss guard compares some hundred steps. What goes wrong after thousands of them, or outside the training
loss, passes it however sharp it is. Such changes are known, and a table refuses them: nothing of it is
measured, each row names where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autotune.model.config import Config, Value, value_text
from autotune.model.facts import RunFacts
from autotune.model.run_length import planned_steps
from autotune.model.study import DeclaredSpec, Study

_RULED: Final = "effective_batch"
_FOLLOWERS: Final = (_RULED, "accumulation")
_SCALER_GROWS_AFTER: Final = 2000
_ENOUGH_FOR_STATISTICS: Final = 16
_PLANNED_SHARE: Final = 0.97
"""A short last batch of an epoch counts as a whole step in the plan, and a trace is counted in samples."""
_FEW_BITS: Final = re.compile(r"(?<![0-9])[48][ _-]?bit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Case:
    """One changed knob of a config, and what is known of the script."""

    study: Study
    knob: str
    value: Value

    @property
    def run(self) -> RunFacts | None:
        return None if self.study.facts is None else self.study.facts.run

    @property
    def own(self) -> Value | None:
        """The script's own value; None where it is not known."""
        space = self.study.space
        dimension = None if space is None else space.dimensions.get(self.knob)
        if dimension is not None and dimension.own is not None:
            return dimension.own
        return None if self.study.facts is None else self.study.facts.value(self.knob)

    @property
    def is_smaller(self) -> bool:
        """A number below the script's own."""
        value, own = self.value, self.own
        return isinstance(value, (int, float)) and isinstance(own, (int, float)) and value < own


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A harm that appears late.

    Args:
        knob: Knob of the change; empty for every user-declared knob.
        applies: Whether the harm is possible with this value for this script.
        harm: The harm, a sentence without its beginning and its full stop.
        steps: Optimizer steps after which it is visible; None: those of the planned run.
        in_training: Whether the training loss can show it at all.
        bars: Whether it excludes a recommendation unless the user took it by name; False: it is only
            reported.
        source: Source of this knowledge.
    """

    knob: str
    applies: Callable[[_Case], bool]
    harm: str
    steps: int | None = None
    in_training: bool = True
    bars: bool = True
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshown:
    """A harm that the runs of a config cannot have shown.

    Args:
        knob, value: The change.
        rule: The row of the table.
        steps: Length of the trace in optimizer steps of the unchanged script.
        allowed: The user took this knob by name.
    """

    knob: str
    value: Value
    rule: Rule
    steps: int
    allowed: bool

    @property
    def bars(self) -> bool:
        """Whether it excludes a recommendation."""
        return self.rule.bars and not self.allowed

    @property
    def sentence(self) -> str:
        """For people: what is not shown, why, and what includes it nevertheless."""
        what = f"What {self.knob}={value_text(self.value)} may cost"
        told = f"{what} is not shown by a trace of {self.steps} steps: {self.rule.harm}"
        if self.bars:
            option = "--effective-batch LO..HI" if self.knob == _RULED else f"--allow {self.knob}"
            return f"{told}; {option} includes it nevertheless."
        return f"{told}; you requested it by name." if self.allowed else f"{told}."


def _is_scaled(case: _Case) -> bool:
    """Gradients of fp16 are scaled: by us, or by the script whose own option sets the format."""
    facts, run = case.study.facts, case.run
    hazards = () if facts is None else facts.script.hazards
    own = "own_autocast" in hazards or (run is not None and run.own_autocast)
    return not own or "own_scaler" in hazards or (run is not None and run.own_scaler)


def _is_ragged(case: _Case) -> bool:
    """Return whether means over batches of differing length are accumulated; tokens or samples is unknown."""
    run = case.run
    if run is None or not isinstance(case.value, int) or case.value <= 1:
        return False
    # Images of several sizes are one sample each, whatever their size.
    pictures = run.model is not None and (run.model.has_4d or run.model.has_5d)
    return run.input_shapes_vary and run.reduction == "mean" and not pictures


def _starves_statistics(case: _Case) -> bool:
    run = case.run
    normed = run is not None and run.model is not None and run.model.batch_norm
    few = isinstance(case.value, int) and case.value < _ENOUGH_FOR_STATISTICS
    return normed and few and case.is_smaller


def _is_larger(case: _Case) -> bool:
    return case.own is not None and case.value != case.own and not case.is_smaller


def _compresses_state(case: _Case) -> bool:
    spec = next((d for d in case.study.spec.space.declared if d.name == case.knob), None)
    return spec is not None and _is_compressing(spec, case.value)


def _is_compressing(spec: DeclaredSpec, value: Value) -> bool:
    named = "optim" in spec.name.lower() or "optim" in spec.spelling.text.lower()
    return named and isinstance(value, str) and _FEW_BITS.search(value) is not None


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        knob="precision",
        applies=lambda case: case.value == "fp16" and not _is_scaled(case),
        harm=(
            "fp16 without a gradient scaler rounds gradients below 6e-8 to zero, and gradients shrink "
            "during training"
        ),
        source="arXiv 1710.03740, 3.2",
    ),
    Rule(
        knob="precision",
        applies=lambda case: case.value == "fp16" and _is_scaled(case),
        harm="the gradient scaler tries a larger scale only after 2000 steps without overflow, and fp16 "
        "overflows late",
        steps=_SCALER_GROWS_AFTER,
        source="torch.amp.GradScaler docs, growth_interval",
    ),
    Rule(
        knob="accumulation",
        applies=_is_ragged,
        harm=(
            "batches differ in length, and where the loss is a mean over tokens, each micro-batch has "
            "the same weight regardless of its tokens: a slightly different objective"
        ),
        bars=False,
        source="the gradient of a mean of means is not that of the mean",
    ),
    Rule(
        knob="batch_size",
        applies=_starves_statistics,
        harm=(
            "BatchNorm evaluates by averages over micro-batches, which are poor below 16 samples; the "
            "training loss does not show that"
        ),
        in_training=False,
        source="arXiv 1803.08494, figure 1",
    ),
    Rule(
        knob="effective_batch",
        applies=lambda case: case.is_smaller,
        harm="a smaller effective batch gains early; its gradient noise has an effect when the loss flattens",
        source="arXiv 1812.06162, 2.2",
    ),
    Rule(
        knob="effective_batch",
        applies=_is_larger,
        harm=(
            "the cost of a larger effective batch at the same learning rate appears late in training and "
            "on held-out data"
        ),
        in_training=False,
        bars=False,
        source="arXiv 1609.04836",
    ),
    Rule(
        knob="pure_bf16",
        applies=lambda case: case.value is True,
        harm=(
            "weights and optimizer state in bf16 lose updates below 1/256 of a weight, and updates "
            "shrink during training"
        ),
        source="arXiv 2010.06192",
    ),
    Rule(
        knob="fp8",
        applies=lambda case: case.value != "off",
        harm=(
            "8-bit products round by the largest value of a tensor or row, and outliers grow during training"
        ),
        source="arXiv 2409.12517",
    ),
    Rule(
        knob="in_order",
        applies=lambda case: case.value is False,
        harm="samples that are slow to load arrive late, which changes the order of the training data",
        source="torch.utils.data.DataLoader docs, in_order",
    ),
    Rule(
        knob="",
        applies=_compresses_state,
        harm="optimizer state of 4 or 8 bits rounds values accumulated over many steps",
        source="arXiv 2110.02861",
    ),
)
"""All harms that are refused, or reported, without a measurement."""


def is_ruled(knob: str, declared: DeclaredSpec | None = None) -> bool:
    """Return whether some value of this knob is refused unless the user takes it by name.

    Args:
        knob: Its name.
        declared: What the user declared it as, if so.
    """
    if declared is not None:
        return any(_is_compressing(declared, value) for value in declared.values)
    return knob != _RULED and any(rule.knob == knob and rule.bars for rule in RULES)


def unshown(study: Study, config: Config, steps: int) -> tuple[Unshown, ...]:
    """Return the harms that a trace of this length cannot have shown of a config, by the table.

    A trace as long as the planned run shows all that training shows. A verification recommends nothing, so it
    refuses nothing.

    Args:
        study: Study of the script.
        config: The changes.
        steps: Optimizer steps of the unchanged script that the trace covers.
    """
    if study.spec.purpose:
        return ()
    own = {spec.name for spec in study.spec.space.declared}
    found: list[Unshown] = []
    for knob, value in config.items():
        case = _Case(study, knob, value)
        for rule in RULES:
            is_of = rule.knob == knob or (not rule.knob and knob in own)
            if is_of and rule.applies(case) and not _shows(study, rule, steps):
                allowed = _is_allowed(study, knob)
                found.append(Unshown(knob=knob, value=value, rule=rule, steps=steps, allowed=allowed))
    return tuple(found)


def barred(study: Study, config: Config, steps: int) -> Unshown | None:
    """Return the first of these that keeps a config from being recommended; None where nothing does."""
    return next((found for found in unshown(study, config, steps) if found.bars), None)


def _shows(study: Study, rule: Rule, steps: int) -> bool:
    if not rule.in_training:
        return False
    if rule.steps is not None and steps >= rule.steps:
        return True
    planned = planned_steps(study)
    return planned is not None and steps >= _PLANNED_SHARE * planned


def _is_allowed(study: Study, knob: str) -> bool:
    """Return whether the user took the knob by name: allowed, pinned, or by a range of effective batches.

    Knobs derived from a pinned micro-batch count as pinned.
    """
    asked, space = study.spec.space, study.space
    if knob in asked.allowed or knob in asked.fixed:
        return True
    varied = space is not None and any(d.knob == knob for d in space.free())
    if knob in _FOLLOWERS and "batch_size" in asked.fixed and not varied:
        return True
    return knob == _RULED and study.spec.effective_batch not in ("explore", "keep")
