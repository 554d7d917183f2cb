"""Facts of a small CPU training loop, changed in one place."""

from dataclasses import replace

from autotune.model.facts import DeviceFacts, HostFacts, ModelFacts, OptimizerFacts, RunFacts
from autotune.testing.knobs import CPU_HOST, CPU_RUN, DDP, DDP_RUN, DEEPSPEED_RUN, FSDP_RUN, LOADER


def run(**changed: object) -> RunFacts:
    return replace(CPU_RUN, **changed)


def loader(**changed: object) -> RunFacts:
    return replace(CPU_RUN, loader=replace(LOADER, **changed))


def model(**changed: object) -> RunFacts:
    return replace(CPU_RUN, model=replace(ModelFacts(name="Net", has_4d=True), **changed))


def optimizer(**changed: object) -> RunFacts:
    return replace(CPU_RUN, optimizer=replace(OptimizerFacts(name="AdamW", can_fuse=True), **changed))


def ddp(
    values: dict[str, object] | None = None, run: dict[str, object] | None = None, **changed: object
) -> RunFacts:
    """Of two processes under DistributedDataParallel."""
    parallel = replace(DDP, **changed)
    return replace(
        DDP_RUN, **{"parallel": parallel, "values": {**DDP_RUN.values, **(values or {})}, **(run or {})}
    )


def fsdp(values: dict[str, object] | None = None, **changed: object) -> RunFacts:
    """Of two processes under FSDP2."""
    parallel = replace(FSDP_RUN.parallel, **changed)
    return replace(FSDP_RUN, parallel=parallel, values={**FSDP_RUN.values, **(values or {})})


def deepspeed(values: dict[str, object] | None = None, **settings: object) -> RunFacts:
    """Of two processes under DeepSpeed."""
    held = {f"deepspeed.{name}": value for name, value in settings.items()}
    return replace(
        DEEPSPEED_RUN,
        owner_settings={**DEEPSPEED_RUN.owner_settings, **held},
        values={**DEEPSPEED_RUN.values, **(values or {})},
    )


def gpu(*capability: int) -> HostFacts:
    return replace(
        CPU_HOST, devices=(DeviceFacts(name="x", uuid="u", memory_bytes=1, capability=capability),)
    )
