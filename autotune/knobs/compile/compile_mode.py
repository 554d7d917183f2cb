"""Compilation of the trained module."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, devices_of, flag_variants, trains_on_cuda
from autotune.knobs.frameworks import ACCELERATOR, ARGUMENTS, DEEPSPEED, owner_of
from autotune.knobs.traits import Prior
from autotune.model.change import Constant, Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import Fields
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ScriptFlag

_MODES: Final = ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
_ON_CPU: Final = ("off", "default", "max-autotune")
CUDA_GRAPHS: Final = ("reduce-overhead", "max-autotune")
_OVERWRITES: Final = "records CUDA graphs, and each replay overwrites the previous gradients"
_KEPT: Final = "the script zeroes gradients in place instead of setting them to None"
_MOST_ROOTS: Final = 4
_OLDEST: Final = (7, 0)
ACCELERATE_MODES: Final = ("default", "reduce-overhead", "max-autotune")
"""Modes that the configuration file of `accelerate launch` accepts."""


class CompileMode(Knob):
    """Compilation of the trained module: fewer and larger kernels, for minutes of compiling at the start.

    ``off`` also undoes a compile of the script. Modes with CUDA graphs exist on NVIDIA devices only and
    need fixed shapes.

    Effect: NUMERIC. Unit: mode of torch.compile. Source: PyTorch 2.0 announcement (163 models on
    A100: +43 % on average); torch.compile docs.
    """

    name: ClassVar[str] = "compile_mode"
    effect: ClassVar[Effect] = Effect.NUMERIC
    family: ClassVar[str] = "compile"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "torch_compile"),
        flag_variants("compile-mode", "torch-compile-mode"),
        flag_variants("compile", "torch-compile", "torchcompile"),
        Constant(("compile_mode", "torch_compile_mode")),
        Constant(("compile", "torch_compile", "use_compile", "use_torch_compile", "compile_model")),
        Patch(),
    )
    rank: ClassVar[int] = 30
    prior: ClassVar[Prior] = Prior(
        gain={
            "cpu": {"default": -0.03, "max-autotune": -0.03},
            "cuda": dict.fromkeys(_MODES[1:], 0.20),
        },
        # Compiled code has fewer operations to launch, and a recorded graph is one.
        host={
            "default": -0.5,
            "max-autotune-no-cudagraphs": -0.5,
            "reduce-overhead": -1.9,
            "max-autotune": -1.9,
        },
        spread=0.2,
        spread_on={"cpu": 0.13},
    )
    loads_compiler: ClassVar[bool] = True

    def own(self, facts: Facts) -> Value | None:
        read, run = facts.value(self.name), facts.run
        return read if read is not None or run is None or run.own_compile else "off"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        return tuple(m for m in _MODES if m in ("off", own) or _no_mode(m, facts) is None)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        switch = as_switch(wanted)
        mode = str(wanted) if switch is None else "default" if switch else "off"
        if mode not in _MODES:
            return None
        return mode if mode == self.own(facts) or _no_mode(mode, facts) is None else None

    def refuse(self, facts: Facts) -> str | None:
        missing = _missing(facts)
        if missing is not None and self.own(facts) in (None, "off"):
            return missing
        run = facts.run
        if run is None:
            return None
        if run.model is None:
            return "No trained module was seen that could be compiled."
        if run.model.roots > _MOST_ROOTS:
            return f"{run.model.roots} separate modules are trained, too many to compile."
        return None

    def changes_rng_streams(self, facts: Facts) -> bool:
        model = None if facts.run is None else facts.run.model
        return model is not None and model.dropout

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return graphs_forbid_zeros(config, facts) or config

    def option(self, value: Value, flag: ScriptFlag) -> tuple[str, str] | None:
        if flag.kind in ("switch", "off_switch", "pair", "bool"):
            return super().option(value == "default", flag) if value in ("off", "default") else None
        spoken = bool(flag.choices) or flag.default in _MODES
        return super().option(value, flag) if spoken else None

    def written(self, value: Value, was: Value) -> Value | None:
        if isinstance(was, bool):
            return {"off": False, "default": True}.get(str(value))
        return value if was in _MODES else None

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        if spelling.target != ARGUMENTS:
            return super().arguments(value, spelling)
        if value == "off":
            # A mode or a backend alone turns it on again.
            return {spelling.name: False, "torch_compile_mode": None, "torch_compile_backend": None}
        return {spelling.name: True, "torch_compile_mode": value}

    def patch(self, value: Value, patches: Patches) -> None:
        patches.compile.set(str(value))

    def withdraw(self, patches: Patches) -> bool:
        return patches.compile.end()

    def seen(self, patches: Patches) -> Value | None:
        return patches.compile.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target == DEEPSPEED:
            return "compiling is requested in code, engine.compile()"
        if target != ACCELERATOR:
            return None
        if change.value in ACCELERATE_MODES:
            return {"dynamo_backend": "INDUCTOR", "dynamo_mode": change.value}
        modes = ", ".join(ACCELERATE_MODES)
        return f"the file accepts the modes {modes} only, and switches off no compile of the script"


def _missing(facts: Facts) -> str | None:
    """Return what the compiler lacks on this machine, or None.

    NVIDIA devices need Triton, which starts a C compiler. The limit is that of torch 2.13,
    `_inductor/exc.py`, `GPUTooOldForTriton`.
    """
    if not trains_on_cuda(facts):
        found = facts.host.cxx
        return None if found else "torch.compile needs a C++ compiler (g++ or clang++), and none was found."
    known = [device.capability for device in devices_of(facts) if device.capability > (0, 0)]
    if min(known, default=_OLDEST) < _OLDEST:
        return "torch.compile needs a device of compute capability 7.0 or newer."
    if facts.run is not None and facts.run.triton is False:
        return "torch.compile needs Triton on NVIDIA devices, and it is not installed."
    if not (facts.host.cc or facts.host.cxx):
        return "torch.compile needs a C compiler (gcc or clang) on NVIDIA devices, and none was found."
    return None


def _no_mode(mode: str, facts: Facts) -> str | None:
    missing = None if mode == "off" else _missing(facts)
    if missing is not None:
        return missing
    if not trains_on_cuda(facts):
        return None if mode in _ON_CPU else f"{mode} differs from other modes on NVIDIA devices only."
    owner = owner_of(CompileMode.spellings, facts)
    if mode in CUDA_GRAPHS and owner is not None:
        return f"{mode} records CUDA graphs, which has not been tried through {owner}."
    if mode in CUDA_GRAPHS and facts.run is not None:
        if facts.run.input_shapes_vary:
            return f"{mode} records CUDA graphs, which need fixed input shapes, and these vary."
        if facts.run.own_accumulation:
            return f"{mode} {_OVERWRITES}, and the script accumulates them."
        if facts.run.zeroes_gradients and facts.run.gradients_pause:
            return f"{mode} {_OVERWRITES}, and {_KEPT}, which must stay since some pause."
    return None


def graphs_forbid_accumulation(config: Config, facts: Facts) -> str | None:
    """Return why this config's gradients cannot be accumulated under its CUDA graphs, or None.

    Gradients that a recorded backward pass returns lie in the graph's own memory. Adding to them after the
    next replay raises (torch/_inductor/cudagraph_trees.py, `format_dealloc_msg`, 2.13).
    """
    mode, factor = config.get("compile_mode") or facts.value("compile_mode"), config.get("accumulation")
    if mode not in CUDA_GRAPHS or not isinstance(factor, int) or factor <= 1 or not trains_on_cuda(facts):
        return None
    return f"{mode} {_OVERWRITES}, so nothing can be accumulated over {factor} micro-batches."


def graphs_forbid_zeros(config: Config, facts: Facts) -> str | None:
    """Return why gradients cannot be filled with zeros under this config's CUDA graphs, or None.

    A parameter's gradient then lies in the graph's own memory from step to step. Filling it, or adding to it,
    raises after the next replay, as with accumulation (`graphs_forbid_accumulation`). A script whose own mode
    records graphs has shown in the baseline that it runs.
    """
    mode, lets_go = config.get("compile_mode"), config.get("set_to_none")
    if mode not in CUDA_GRAPHS or lets_go is True or not trains_on_cuda(facts):
        return None
    if lets_go is None and (facts.run is None or not facts.run.zeroes_gradients):
        return None
    return f"{mode} {_OVERWRITES}, and {_KEPT}: it needs set_to_none=True."
