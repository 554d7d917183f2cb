"""Facts of a small CPU training loop, changed in one place."""

from dataclasses import replace
from typing import ClassVar

import pytest

from autotune.knobs.base import Knob
from autotune.model.facts import DeviceFacts, HostFacts, ModelFacts, OptimizerFacts, RunFacts
from autotune.testing.knobs import CPU_HOST, CPU_RUN, DDP, DDP_RUN, DEEPSPEED_RUN, FSDP_RUN, LOADER, facts


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


class NcclVariable:
    """Tests of a knob that is an environment variable of NCCL.

    Subclasses set the knob, its variable and its values.
    """

    knob: ClassVar[Knob]
    variable: ClassVar[str]
    values: ClassVar[tuple[object, ...]]

    @pytest.mark.parametrize(
        ("run", "words"),
        [
            (CPU_RUN, "A single process"),
            (ddp(run={"parallel": None}), "No wrapper was seen"),
            (ddp(), "not by NCCL"),
        ],
    )
    def test_the_fact_refuses_the_knob_in_words(self, run: RunFacts, words: str) -> None:
        assert words in str(self.knob.refuse(facts(run=run)))

    def test_nccl_gets_the_variable_unless_the_script_sets_it(self) -> None:
        given = facts(run=ddp(backend="nccl"))
        assert self.knob.refuse(given) is None
        assert self.knob.domain(given) == self.values
        own = facts(run=ddp(backend="nccl", run={"environ_set": (self.variable,)}))
        assert f"sets {self.variable} itself" in str(self.knob.refuse_spelling(self.knob.spellings[0], own))
