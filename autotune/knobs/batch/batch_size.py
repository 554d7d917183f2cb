"""Samples per micro-batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.batch import batching
from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.batch.batching import BATCH_CONSTANTS, shown, unseen
from autotune.knobs.batch.processes import Processes
from autotune.knobs.common import (
    LOADER,
    as_count,
    constants_named,
    flag_variants,
    joined,
    listed,
    loader_of,
)
from autotune.knobs.declared import given_value
from autotune.knobs.distributed.wrapper_knob import PROCESSES
from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED, fits_by_keras, is_row, refuse_engine, setting
from autotune.knobs.traits import LateHarm, Prior
from autotune.model.change import Constant, Keyword, Patch, Spelling
from autotune.model.effect import Effect, strictest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import ActsAt, ChangedKnob, Fields, MemoryUse, Setting
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, ScriptFacts

BATCH_OPTIONS = flag_variants(
    "batch-size",
    "train-batch-size",
    "per-device-train-batch-size",
    "micro-batch-size",
    "mini-batch-size",
    "batchSize",
    "batchsize",
    "bs",
    "batch",
)
_STEPS = range(-3, 4)
_BY_DOUBLING: Final = {"cpu": (0.0, 0.15), "cuda": (0.08, 0.15)}
"""Ln of the rate of computing that each doubling gains and each halving loses (experiments/grids)."""
_ENOUGH_FOR_STATISTICS: Final = 16
"""Samples per micro-batch (arXiv 1803.08494, figure 1)."""


def starves_statistics(changed: ChangedKnob) -> bool:
    """Return whether BatchNorm averages over fewer samples than it needs, and fewer than in the script."""
    run = changed.run
    normed = run is not None and run.model is not None and run.model.batch_norm
    few = isinstance(changed.value, int) and changed.value < _ENOUGH_FOR_STATISTICS
    return normed and few and changed.is_smaller


class BatchSize(Knob):
    """Samples per micro-batch: more use the device better, too many run out of memory.

    With a kept effective batch it has to divide that batch, and accumulation completes it. Without
    accumulation it changes together with `effective_batch`.

    Effect: EXACT (another order of summation); TRAINING with BatchNorm, NUMERIC with dropout and
    where the script makes its batches without a loader.
    Unit: samples. Source: DeepLearningExamples nnUNet README (the gain is not monotone).
    """

    name: ClassVar[str] = "batch_size"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "samples"
    family: ClassVar[str] = "batch"
    requires: ClassVar[Sequence[str]] = ("accumulation",)
    withdraws_with: ClassVar[Sequence[str]] = ("accumulation",)
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "per_device_train_batch_size"),
        BATCH_OPTIONS,
        BATCH_CONSTANTS,
        Keyword(LOADER, "batch_size"),
    )
    rank: ClassVar[int] = 70
    prior: ClassVar[Prior] = Prior(spread=0.15, spread_on={"cpu": 0.12})
    acts_at: ClassVar[ActsAt] = "construction"
    memory: ClassVar[MemoryUse] = "monotone"
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=starves_statistics,
            harm=(
                "BatchNorm evaluates by averages over micro-batches, which are poor below 16 samples; the "
                "training loss does not show that"
            ),
            in_training=False,
            source="arXiv 1803.08494, figure 1",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        return batching.own_micro(facts)

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = batching.own_batch(facts)
        if own is None:
            return ()
        if Accumulation().refuse(facts) is not None:
            values: dict[str, Sequence[Value]] = {"effective_batch": batching.effective_values(facts)}
            if Processes().refuse(facts) is None:
                values[PROCESSES] = Processes().domain(facts)
            return self._possible(batching.micros(values, facts), facts)
        effectives = batching.effective_values(facts)
        ladder = {int(own.micro * 2.0**k) for k in _STEPS if own.micro * 2.0**k % 1 == 0}
        fits = {m for m in ladder if any(e % m == 0 for e in effectives)}
        return self._possible(tuple(fits), facts)

    def _possible(self, values: Sequence[int], facts: Facts) -> Sequence[Value]:
        loader = loader_of(facts)
        most = loader.dataset_length if loader is not None else None
        return joined((v for v in values if v >= 1 and (most is None or v <= most)), self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        count, loader = as_count(wanted, self.own(facts), least=1), loader_of(facts)
        if count is not None and loader is not None and loader.dataset_length is not None:
            return count if count <= loader.dataset_length or count == self.own(facts) else None
        return count

    def refuse(self, facts: Facts) -> str | None:
        reason = unseen(facts)
        if facts.run is None or reason is not None:
            return reason
        if batching.own_micro(facts) is None and loader_of(facts) is not None:
            return "The loader has no batch size of its own: the dataset or a sampler makes the batches."
        if facts.effective_batch_rule == "keep":
            factor = ("accumulation",) if Accumulation().refuse(facts) is None else ()
            ranks = (PROCESSES,) if Processes().refuse(facts) is None else ()
            return self.idle(facts, (*factor, *ranks))
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        owned = super().refuse_spelling(spelling, facts)
        if owned is not None:
            return owned
        loader = loader_of(facts)
        if facts.run is None or loader is None:
            return None
        if isinstance(spelling, Constant) and loader.sizes:
            return (
                f"Loaders of {listed(loader.sizes)} samples are built at {loader.site}, so the size of one "
                "of them does not show what the constant sets."
            )
        if not isinstance(spelling, (Keyword, Patch)):
            return None
        if facts.run.fixed_steps:
            return (
                f"The script counts {facts.run.fixed_steps} by a constant, which another batch of the loader "
                "would not reach."
            )
        if loader.custom_batch_sampler:
            return "The loader uses a batch sampler of the script's own, which decides the batches itself."
        if setting(facts, "deepspeed.counts_batches") is True:
            return (
                "The script uses the length of DeepSpeed's loader, which depends on its configuration only."
            )
        if fits_by_keras(facts):
            return "Keras counts the batches of a pass by the batch size passed to it."
        if loader.takes_one:
            return (
                "The loader returns the single sample of a batch and would lose the others of a larger batch."
            )
        if isinstance(spelling, Keyword) and is_row(spelling):
            given = setting(facts, "transformers.per_device_train_batch_size")
            if given != self.own(facts):
                return f"The loader's batches are not of the {given} samples that are set on the Trainer."
            return refuse_engine(spelling, facts)
        if loader.sizes:
            return (
                f"Loaders of {listed(loader.sizes)} samples are built at {loader.site}, and one size for "
                "all would change the training."
            )
        if loader.beside:
            return "Batches of several loaders train, and only one loader would change its batch size."
        if "hidden_state" in facts.script.hazards:
            return (
                "The script allocates a hidden state by its own batch size, so only its option may change it."
            )
        return None

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if {"accumulation", "effective_batch", PROCESSES} & set(varied):
            return None
        reason = Accumulation().refuse(facts) or "Accumulation is not part of this search."
        return f"Another batch_size would change the effective batch, which is kept. {reason}"

    def derived_in(self, facts: Facts, varied: Collection[str]) -> bool:
        return "accumulation" not in varied

    def follow(self, values: Mapping[str, Sequence[Value]], facts: Facts) -> Sequence[Value]:
        return batching.micros(values, facts)

    def effect_for(self, facts: Facts) -> Effect:
        return strictest(self.effect, Accumulation().effect_for(facts))

    def raised(self, facts: Facts) -> str:
        return Accumulation().raised(facts)

    def changes_rng_streams(self, facts: Facts) -> bool:
        loader = loader_of(facts)
        return Accumulation().changes_rng_streams(facts) or (loader is not None and loader.random)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return batching.settle_batch(config, facts, available(facts) if varied is None else varied)

    def option_value(self, value: Value, facts: Facts) -> Value | None:
        """Return the option's value that scales all its loaders as the training loader, or None."""
        run, own = facts.run, self.own(facts)
        given = 0 if run is None or run.loader is None else run.option_batch
        if not given or given == own or not isinstance(own, int) or not isinstance(value, int):
            return value
        return value * given // own if value * given % own == 0 else None

    def shown_at(self, facts: Facts) -> str:
        found = shown(facts)
        return "" if found is None else found.place

    def patch(self, value: Value, patches: Patches) -> None:
        patches.loader.override("batch_size", value)

    def withdraw(self, patches: Patches) -> bool:
        return patches.loader.give_back("batch_size")

    def seen(self, patches: Patches) -> Value | None:
        return patches.loader.observed("batch_size")

    def expected_gain(self, value: Value, setting: Setting) -> float:
        own = setting.own.get(self.name)
        if not isinstance(value, int) or not isinstance(own, int) or value <= 0 or own <= 0:
            return 0.0
        up, down = _BY_DOUBLING.get(setting.device, (0.0, 0.0))
        doublings = math.log2(value / own)
        return doublings * (up if doublings > 0 else down)

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return {"train_micro_batch_size_per_gpu": change.value} if target == DEEPSPEED else None


def available(facts: Facts) -> Collection[str]:
    """Return the batch knobs that facts do not refuse, which `settle` assumes without a space."""
    factor = () if Accumulation().refuse(facts) else ("accumulation",)
    return ("batch_size", "effective_batch", *factor)


def given_batch_size(script: ScriptFacts, args: Sequence[str]) -> int:
    """Return the batch size of the script's own option on this command line, else of its constants.

    Returns:
        0 where neither can be read, or several constants have different sizes.
    """
    option = script.flag(*BATCH_OPTIONS.names)
    size = None if option is None else given_value(option, args)
    if option is None:
        sizes = {constant.value for constant in constants_named(BATCH_CONSTANTS.names, script)}
        size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 0
