"""Properties of a knob before it is measured: expected gain, late harm, and where it takes effect.

Each knob has these as class attributes in its own file. The search, the loss guard and the automatic choice
of a space read them through the registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.model.config import Value
    from autotune.model.facts import RunFacts
    from autotune.model.study import Study

HALF: tuple[Value, ...] = ("bf16", "fp16")
"""Values of `precision` with 16 bits."""

ActsAt = Literal["construction", "step_end", "call"]
"""Time at which a knob's value takes effect in the training process.

``construction``: once, or where a loader, an optimizer or a wrapper is built. ``step_end``: after each
optimizer step. ``call``: in calls of the model, so that hooks have to stay.
"""
Fields: TypeAlias = "Mapping[str, Any] | str | None"
"""Fields of a framework's configuration, the reason for none, or None where its arguments decide."""
MemoryUse = Literal["monotone", "none", "any"]
"""Relation of a larger value to peak memory: never less (``monotone``), unchanged (``none``), or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Expected effect of a knob on speed; a measurement replaces it.

    Args:
        gain: Device kind (``cpu``, ``cuda``) -> value -> ln of the rate of computing.
        host: Value -> ln of the time that the host needs to launch the work of a device.
        spread: How far a value may deviate from the expected gain, in ln rate.
        spread_on: `spread` on one kind of device, where it differs.
        is_of_loading: The deviation shrinks with the share of the step that loading takes.
    """

    gain: Mapping[str, Mapping[Value, float]] = field(default_factory=dict[str, "Mapping[Value, float]"])
    host: Mapping[Value, float] = field(default_factory=dict["Value", float])
    spread: float = 0.1
    spread_on: Mapping[str, float] = field(default_factory=dict[str, float])
    is_of_loading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The configuration for which a gain is expected.

    Args:
        values: Value of every knob of the space, the script's own where the configuration changes none.
        own: The script's own values.
        device: ``cpu``, ``cuda``, another kind, or empty if no model was seen.
        has_images: The model has convolutions over images.
    """

    values: Mapping[str, Value | None]
    own: Mapping[str, Value | None]
    device: str
    has_images: bool

    @property
    def is_half(self) -> bool:
        """Whether a CUDA device computes in 16 bits."""
        return self.device == "cuda" and self.values.get("precision") in HALF


@dataclass(frozen=True, slots=True)
class ChangedKnob:
    """One changed knob of a configuration, with the facts of its study."""

    study: Study
    knob: str
    value: Value

    @property
    def run(self) -> RunFacts | None:
        """Facts of the script's own run."""
        return None if self.study.facts is None else self.study.facts.run

    @property
    def own(self) -> Value | None:
        """The script's own value, or None if unknown."""
        space = self.study.space
        dimension = None if space is None else space.dimensions.get(self.knob)
        if dimension is not None and dimension.own is not None:
            return dimension.own
        return None if self.study.facts is None else self.study.facts.value(self.knob)

    @property
    def is_smaller(self) -> bool:
        """Whether the value is a number below the script's own."""
        value, own = self.value, self.own
        return isinstance(value, (int, float)) and isinstance(own, (int, float)) and value < own


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHarm:
    """A harm that a short trace of the loss cannot show.

    Args:
        applies: Whether a change of the knob can have it for this script.
        harm: What happens, a sentence without its beginning and its full stop.
        steps: Optimizer steps that show it; None: as many as the planned run has.
        in_training: The loss of training can show it at all.
        bars: The value is not recommended unless the user named the knob; False: the harm is only mentioned.
        source: Paper or reason behind it.
    """

    applies: Callable[[ChangedKnob], bool]
    harm: str
    steps: int | None = None
    in_training: bool = True
    bars: bool = True
    source: str
