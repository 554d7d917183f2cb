"""Harm that a short trace of the loss cannot show, by knob and condition. Pure; standard library only.

The loss guard compares some hundred steps. What goes wrong after thousands of them, or outside the training
loss, passes it however sharp it is. Knobs list such harms of their values (`Knob.late_harms`), each with its
source; nothing of it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autotune.knobs.declared import declared_knob
from autotune.knobs.registry import builtin, knobs_for
from autotune.knobs.traits import ChangedKnob, LateHarm
from autotune.model.config import Config, Value, value_text
from autotune.model.run_length import planned_steps
from autotune.model.study import DeclaredSpec, Study

_RULED: Final = "effective_batch"
_FOLLOWERS: Final = (_RULED, "accumulation")
_PLANNED_SHARE: Final = 0.97
"""A short last batch of an epoch counts as a whole step in the plan, and a trace is counted in samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshown:
    """A harm that the runs of a config cannot have shown.

    Args:
        knob, value: The change.
        harm: What the trace does not show.
        steps: Length of the trace in optimizer steps of the unchanged script.
        option: Of the command line that includes it nevertheless.
        allowed: The user took this knob by name.
    """

    knob: str
    value: Value
    harm: LateHarm
    option: str
    steps: int
    allowed: bool

    @property
    def bars(self) -> bool:
        """Whether it excludes a recommendation."""
        return self.harm.bars and not self.allowed

    @property
    def sentence(self) -> str:
        """For people: what is not shown, why, and what includes it nevertheless."""
        what = f"What {self.knob}={value_text(self.value)} may cost"
        text = f"{what} is not shown by a trace of {self.steps} steps: {self.harm.harm}"
        if self.bars:
            return f"{text}; {self.option} includes it nevertheless."
        return f"{text}; you requested it by name." if self.allowed else f"{text}."


def is_ruled(name: str, declared: DeclaredSpec | None = None) -> bool:
    """Return whether some value of this knob is refused unless the user takes it by name.

    Args:
        name: Of the knob.
        declared: What the user declared it as, if so.
    """
    if declared is not None:
        return bool(declared_knob(declared).late_harms)
    knob = builtin().get(name)
    return knob is not None and not knob.permission and any(harm.bars for harm in knob.late_harms)


def unshown(study: Study, config: Config, steps: int) -> tuple[Unshown, ...]:
    """Return the late harms of a config that a trace of this length cannot show.

    A trace as long as the planned run shows all that training shows. A verification recommends nothing, so it
    refuses nothing.

    Args:
        study: Study of the script.
        config: The changes.
        steps: Optimizer steps of the unchanged script that the trace covers.
    """
    if study.spec.purpose:
        return ()
    found: list[Unshown] = []
    knobs = knobs_for(study.spec.space)
    for name, value in config.items():
        if name not in knobs:
            continue
        changed, option = ChangedKnob(study, name, value), knobs[name].permission or f"--allow {name}"
        for harm in knobs[name].late_harms:
            if harm.applies(changed) and not _shows(study, harm, steps):
                allowed = _is_allowed(study, name)
                found.append(
                    Unshown(knob=name, value=value, harm=harm, steps=steps, option=option, allowed=allowed)
                )
    return tuple(found)


def barred(study: Study, config: Config, steps: int) -> Unshown | None:
    """Return the first of these that keeps a config from being recommended; None where nothing does."""
    return next((found for found in unshown(study, config, steps) if found.bars), None)


def _shows(study: Study, harm: LateHarm, steps: int) -> bool:
    if not harm.in_training:
        return False
    if harm.steps is not None and steps >= harm.steps:
        return True
    planned = planned_steps(study)
    return planned is not None and steps >= _PLANNED_SHARE * planned


def _is_allowed(study: Study, knob: str) -> bool:
    """Return whether the user took the knob by name: allowed, pinned, or by a range of effective batches.

    Knobs derived from a pinned micro-batch count as pinned.
    """
    requested, space = study.spec.space, study.space
    if knob in requested.allowed or knob in requested.fixed:
        return True
    varied = space is not None and any(d.knob == knob for d in space.free())
    if knob in _FOLLOWERS and "batch_size" in requested.fixed and not varied:
        return True
    return knob == _RULED and study.spec.effective_batch not in ("explore", "keep")
