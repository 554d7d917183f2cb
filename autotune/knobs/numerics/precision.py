"""Number format of the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import constant_of, devices_of, flag_variants, trains_on_cuda
from autotune.knobs.frameworks import (
    ACCELERATOR,
    ARGUMENTS,
    DEEPSPEED,
    LIGHTNING,
    fits_by_keras,
    owner_of,
    refuse_engine,
    rows,
    setting,
)
from autotune.knobs.traits import LateHarm, Prior
from autotune.model.change import Constant, Flag, Keyword, Patch, Spelling
from autotune.model.effect import Effect
from autotune.source.loops import OWN_GRADIENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import ChangedKnob, Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import Facts, ScriptFlag

_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "fp32": ("fp32", "float32", "no", "32", "32-true", "full", "float"),
    "bf16": ("bf16", "bfloat16", "bf16-mixed"),
    "fp16": ("fp16", "float16", "16-mixed", "half"),
}
_AUTOCAST_OPTIONS: Final = flag_variants(
    "amp", "use-amp", "enable-amp", "autocast", "use-autocast", "mixed-precision", "use-mixed-precision"
)
_SWITCHES: Final = {"--bf16": "bf16", "--fp16": "fp16"}


class Precision(Knob):
    """Number format of the forward pass: half precision moves less data, and rounds more.

    ``bf16`` enters autocast around the trained module at each call; ``fp16`` adds a gradient scaler.
    Outputs return as float32, so the loss stays outside.

    Effect: NUMERIC. Unit: format. Source: NVIDIA DeepLearningExamples, resnet50v1.5 (2.63 times on
    A100); torch.amp docs.
    """

    name: ClassVar[str] = "precision"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "precision"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "bf16"),
        Keyword(LIGHTNING, "precision"),
        Keyword(ACCELERATOR, "mixed_precision"),
        Keyword(DEEPSPEED, "torch_autocast"),
        flag_variants("precision", "mixed-precision", "amp-dtype", "dtype"),
        Flag(("--bf16",)),
        Flag(("--fp16",)),
        _AUTOCAST_OPTIONS,
        Constant(("precision", "mixed_precision", "amp_dtype", "autocast_dtype", "train_dtype", "dtype")),
        Constant(("use_amp", "amp", "enable_amp", "use_autocast", "use_mixed_precision")),
        Patch(),
    )
    rank: ClassVar[int] = 10
    prior: ClassVar[Prior] = Prior(
        gain={"cpu": {"bf16": 0.10}, "cuda": {"bf16": 1.1, "fp16": 1.05}},
        host={"bf16": 0.1, "fp16": 0.15},
        spread=0.35,
        spread_on={"cuda": 0.5},
    )
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=lambda changed: changed.value == "fp16" and not _is_scaled(changed),
            harm=(
                "fp16 without a gradient scaler rounds gradients below 6e-8 to zero, and gradients shrink "
                "during training"
            ),
            source="arXiv 1710.03740, 3.2",
        ),
        LateHarm(
            applies=lambda changed: changed.value == "fp16" and _is_scaled(changed),
            harm="the gradient scaler tries a larger scale only after 2000 steps without overflow, and fp16 "
            "overflows late",
            steps=2000,
            source="torch.amp.GradScaler docs, growth_interval",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        read, run = facts.value(self.name), facts.run
        if read is not None or run is None or run.model is None or run.own_autocast or run.owners:
            return read
        return "fp32" if set(run.model.dtypes) == {"float32"} else None

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        formats = ("fp32", "bf16", "fp16")
        return tuple(
            f
            for f in formats
            if f in ("fp32", own)
            or (_no_hardware(f, facts) is None and (f != "fp16" or _no_scaler(facts) is None))
        )

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if isinstance(wanted, bool):
            wanted = next((f for f in self.domain(facts) if f != "fp32"), "") if wanted else "fp32"
        found = next((f for f, words in _WORDS.items() if str(wanted) in words), None)
        if found is None or found == self.own(facts) or found == "fp32":
            return found
        if found == "fp16" and _no_scaler(facts) is not None:
            return None
        return found if _no_hardware(found, facts) is None else None

    def refuse(self, facts: Facts) -> str | None:
        if _no_hardware("bf16", facts) is not None and _no_hardware("fp16", facts) is not None:
            return _no_hardware("bf16", facts)
        offered = any(
            self._is_own_way(s, facts) and self.refuse_spelling(s, facts) is None for s in self.spellings
        )
        way = next(iter(rows(self.spellings, facts)), Patch())
        return None if offered else self.refuse_spelling(way, facts)

    def _is_own_way(self, spelling: Spelling, facts: Facts) -> bool:
        """Return whether this is an option or a constant that the script has."""
        if isinstance(spelling, Constant):
            return not isinstance(constant_of(spelling, facts.script, self.own(facts), self.written), str)
        return isinstance(spelling, Flag) and _has(spelling, facts)

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        written = "own_autocast" in facts.script.hazards
        own = written if facts.run is None else facts.run.own_autocast
        if isinstance(spelling, (Flag, Constant)):
            if own or written:
                return super().refuse_spelling(spelling, facts)
            return "The script enters no autocast, so its setting may turn the weights to half precision."
        if own:
            return "The script enters autocast itself, so only its own setting can change the format."
        owned = super().refuse_spelling(spelling, facts)
        refused = owned or _numbers(facts) or _arguments_bound(spelling, facts)
        if refused is None and _no_hardware("bf16", facts) is not None:
            # Only fp16 is left, and it needs a gradient scaler of autotune.
            refused = _no_scaler(facts)
        return refused

    def changes_rng_streams(self, facts: Facts) -> bool:
        model = None if facts.run is None else facts.run.model
        return model is not None and model.dropout and model.device.startswith("cuda")

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        if flag.autocast:
            turns_on = value == flag.autocast
            return super().option(turns_on, flag) if turns_on or value == "fp32" else None
        name = next((n for n in flag.names if n.startswith("--")), flag.names[0])
        if name in _SWITCHES:
            wanted = _SWITCHES[name] == value
            return super().option(True, flag) if wanted and flag.kind != "str" else None
        if flag.kind != "str" or not isinstance(value, str):
            return None
        vocabulary = flag.choices or _vocabulary(flag.default)
        word = next((w for w in _WORDS.get(value, ()) if w in vocabulary), None)
        return None if word is None else (name, word)

    def written(self, value: Value, was: Value) -> Value | None:
        if isinstance(was, bool):
            return value != "fp32"
        vocabulary = _vocabulary(was)
        return next((word for word in _WORDS.get(str(value), ()) if word in vocabulary), None)

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        match spelling.target:
            case "transformers.TrainingArguments":
                return {"bf16": value == "bf16", "fp16": value == "fp16"}
            case "lightning.Trainer":
                return {spelling.name: {"fp32": "32-true", "bf16": "bf16-mixed"}.get(str(value), "16-mixed")}
            case "accelerate.Accelerator":
                return {spelling.name: "no" if value == "fp32" else value}
            case _:
                return super().arguments(value, spelling)

    def patch(self, value: Value, patches: Patches) -> None:
        if value != "fp32":
            patches.precision.set(str(value))

    def withdraw(self, patches: Patches) -> bool:
        patches.precision.end_precision()
        return True

    def seen(self, patches: Patches) -> Value | None:
        return patches.precision.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target != DEEPSPEED:
            return None
        if not isinstance(change.spelling, Keyword) or change.spelling.target != DEEPSPEED:
            return {form: {"enabled": change.value == form} for form in ("bf16", "fp16")}
        name = {"bf16": "bfloat16", "fp16": "float16"}.get(str(change.value))
        return {"torch_autocast": {"enabled": name is not None, **({} if name is None else {"dtype": name})}}


def _has(spelling: Flag, facts: Facts) -> bool:
    """Return whether the script has this option; one named like autocast must be observed to enable it."""
    option = facts.script.flag(*spelling.names)
    return option is not None and (spelling is not _AUTOCAST_OPTIONS or bool(option.autocast))


def _vocabulary(default: Value | None) -> tuple[str, ...]:
    """Return the words that an option accepts, guessed from its default."""
    styles = (("float32", "bfloat16", "float16"), ("fp32", "bf16", "fp16"), ("no", "bf16", "fp16"))
    return next((style for style in styles if default in style), ())


def _no_hardware(form: str, facts: Facts) -> str | None:
    if trains_on_cuda(facts):
        oldest = min((device.capability for device in devices_of(facts)), default=(0, 0))
        if form == "bf16" and oldest < (8, 0):
            return "The device has no bf16 in hardware (compute capability 8.0 or newer is needed)."
        if form == "fp16" and not (7, 0) <= oldest < (8, 0):
            return "fp16 is used on Volta and Turing devices only; on newer ones bf16 is safer and as fast."
        return None
    if form == "fp16":
        return "fp16 gains nothing on a CPU."
    if not {"avx512_bf16", "amx_bf16"} & set(facts.host.cpu_flags):
        return "This CPU has no bf16 in hardware (avx512_bf16 or amx_bf16 is needed)."
    return None


def _arguments_bound(spelling: Spelling, facts: Facts) -> str | None:
    """Return why a framework's argument would conflict with another one of the script, or None."""
    target = spelling.target if isinstance(spelling, Keyword) else ""
    if target == LIGHTNING and setting(facts, "lightning.plugins") is True:
        return "The Trainer has plugins, one of which may set the number format."
    if target == DEEPSPEED and setting(facts, "deepspeed.torch_autocast") is None:
        return "This DeepSpeed version has no torch_autocast and disables every other autocast."
    return refuse_engine(spelling, facts) if isinstance(spelling, Keyword) else None


def _numbers(facts: Facts) -> str | None:
    run, hazards = facts.run, facts.script.hazards
    if fits_by_keras(facts):
        return "Keras layers set their number format by a dtype policy and override autocast."
    if "bce_on_sigmoid" in hazards if run is None else run.bce_outside:
        return "The loss is BCELoss on the model's output, and a sigmoid in half precision saturates."
    if run is None:
        return None
    if run.model is None:
        return "No trained module was seen around which autocast could be entered."
    if set(run.model.dtypes) != {"float32"}:
        return f"The parameters are not all float32 but {' and '.join(sorted(run.model.dtypes))}."
    if not run.model.products:
        return "The trained modules have no matrix products, which are what autocast runs in half precision."
    if run.model.mkldnn:
        return "Layers use MKL-DNN's own memory layout, which PyTorch cannot cast to another format."
    return None


def _no_scaler(facts: Facts) -> str | None:
    """Return why fp16 cannot have its gradient scaler, or None."""
    run = facts.run
    if run is None:
        return None
    owner = owner_of(Precision.spellings, facts)
    if owner is not None:
        return f"fp16 needs a gradient scaler of {owner} , which is not supported."
    if run.optimizer is None:
        return "No optimizer was seen whose gradients could be scaled."
    if run.optimizer.count > 1:
        return f"{run.optimizer.count} optimizers step, and one gradient scaler cannot serve them all."
    if run.optimizer.closure:
        return "The optimizer step takes a closure, which a gradient scaler does not support."
    if run.explicit_backward_gradient:
        return "The script passes its own gradient to backward, which cannot be scaled."
    if run.own_scaler:
        return "The script has a gradient scaler of its own."
    if OWN_GRADIENT in (*facts.script.hazards, *run.loop_hazards):
        return "The script's own code uses gradients, which would be scaled."
    return None


def _is_scaled(changed: ChangedKnob) -> bool:
    """Return whether gradients of fp16 are scaled, by autotune or by the script."""
    facts, run = changed.study.facts, changed.run
    hazards = () if facts is None else facts.script.hazards
    own = "own_autocast" in hazards or (run is not None and run.own_autocast)
    return not own or "own_scaler" in hazards or (run is not None and run.own_scaler)
