"""Kernel of scaled dot product attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import devices_of, flag_variants, torch_version, trains_on_cuda
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.traits import Prior
from autotune.model.change import Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import Fields, Setting
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ScriptFlag

_KERNELS: Final = ("auto", "flash", "efficient", "cudnn", "math")
_HALF: Final = ("flash", "cudnn")
_FORMATS: Final = ("bf16", "fp16")
_NEWEST_WITHOUT_CUDNN: Final = (2, 4)
_NOT_FLASH: Final = 0.1
"""Ln of the rate that is lost: mostly the default is the fastest kernel in 16 bits (experiments/gpu)."""
_SET_ON_MODEL: Final = "this is set on the model (`attn_implementation`), not in TrainingArguments"


class AttentionBackend(Knob):
    """Kernel of scaled dot product attention: torch selects one by fixed rules, without measuring.

    Set by torch's switches of the process, so it also holds in `torch.nn.MultiheadAttention` and in
    compiled code. A call that the selected kernel cannot compute ends the trial.

    Effect: NUMERIC. Unit: kernel. Source: torch.nn.attention.sdpa_kernel docs; FlashAttention
    (arXiv 2205.14135).
    """

    name: ClassVar[str] = "attention_backend"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "kernels"
    spellings: ClassVar[Sequence[Spelling]] = (flag_variants("attention-backend", "sdpa-backend"), Patch())
    rank: ClassVar[int] = 50
    prior: ClassVar[Prior] = Prior(spread=0.15, spread_on={"cuda": 0.08})

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        if read is not None:
            return read if read in _KERNELS else None
        return None if facts.run is None else "auto"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        # math is what everything else was made to replace: worth a try only where little else is.
        return tuple(
            k
            for k in _KERNELS
            if k in ("auto", own)
            or (
                _no_kernel(k, facts) is None
                and not (k == "math" and trains_on_cuda(facts))
                and k != _chosen_anyway(facts)
            )
        )

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if wanted not in _KERNELS:
            return None
        return wanted if wanted in ("auto", self.own(facts)) or _no_kernel(wanted, facts) is None else None

    def refuse(self, facts: Facts) -> str | None:
        run = facts.run
        if run is None:
            return None
        if run.attention is None:
            return "The run called no scaled_dot_product_attention whose kernel could be chosen."
        if run.attention.restricted:
            return "The script chooses the kernels of its attention itself."
        return None

    def changes_rng_streams(self, facts: Facts) -> bool:
        attention = None if facts.run is None else facts.run.attention
        return attention is not None and attention.dropout

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        if config.get(self.name) not in _HALF or not trains_on_cuda(facts) or _is_half(config, facts):
            return config
        return config.without(self.name)

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        return super().option(value, flag) if flag.choices else None

    def patch(self, value: Value, patches: Patches) -> None:
        patches.attention.force(str(value))

    def seen(self, patches: Patches) -> Value | None:
        return patches.attention.observed()

    def expected_gain(self, value: Value, setting: Setting) -> float:
        return -_NOT_FLASH if value == "efficient" and setting.is_half else 0.0

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return _SET_ON_MODEL if target == ARGUMENTS else None


def _is_half(config: Config, facts: Facts) -> bool:
    """Return whether queries have 16 bits, as flash and cuDNN on NVIDIA devices require."""
    form = config.get("precision") or facts.value("precision")
    if form is not None and config.get("precision") is not None:
        return form in _FORMATS
    attention = None if facts.run is None else facts.run.attention
    seen = attention is not None and attention.dtype in ("bfloat16", "float16")
    return seen or form in _FORMATS or config.get("pure_bf16") is True


def _chosen_anyway(facts: Facts) -> str | None:
    """Return torch's own choice on a CPU, which does not depend on the number format; else None."""
    attention = None if facts.run is None else facts.run.attention
    return None if attention is None or trains_on_cuda(facts) else attention.kernel


def _no_kernel(kernel: str, facts: Facts) -> str | None:
    if kernel == "math":
        return None
    if not trains_on_cuda(facts):
        attention = None if facts.run is None else facts.run.attention
        if kernel != "flash":
            return f"The {kernel} kernel exists on NVIDIA devices only."
        if attention is not None and attention.dropout:
            return "On a CPU the flash kernel does not support dropout of attention weights."
        return None
    oldest = min((device.capability for device in devices_of(facts)), default=(0, 0))
    if kernel in _HALF and oldest < (8, 0):
        return f"The {kernel} kernel needs compute capability 8.0 or newer."
    called = None if facts.run is None else facts.run.attention
    if kernel == "flash" and called is not None and called.masked:
        return "The flash kernel supports causal masks only, and the script passes another mask."
    version = torch_version(facts)
    if kernel == "cudnn" and version is not None and version <= _NEWEST_WITHOUT_CUDNN:
        return "This PyTorch has no switch for cuDNN's attention."
    return None
