"""Micro-batches per optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.batch import batching
from autotune.knobs.common import as_count, constant_of, dealt_by_batch, flag_variants, joined, listed
from autotune.knobs.compile.compile_mode import graphs_forbid_accumulation
from autotune.knobs.distributed.ddp_no_sync import refuse_deferred
from autotune.knobs.distributed.wrapper_knob import PROCESSES
from autotune.knobs.frameworks import (
    ACCELERATOR,
    ARGUMENTS,
    DEEPSPEED,
    LIGHTNING,
    TRAINER,
    is_per_item,
    is_row,
    refuse_accumulation,
    refuse_rest,
    rows,
    setting,
)
from autotune.knobs.traits import LateHarm
from autotune.model.change import Constant, Flag, Keyword, Patch, Spelling
from autotune.model.effect import Effect
from autotune.source import loops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import ChangedKnob, Fields, MemoryUse
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, LoaderFacts, RunFacts

ACCUMULATION_OPTIONS = flag_variants(
    "gradient-accumulation-steps",
    "grad-accumulation-steps",
    "accumulation-steps",
    "grad-accum-steps",
    "grad-accum",
    "accum-steps",
    "accumulate-grad-batches",
    "gradient-accumulation",
    "grad-accumulation",
    "grad-acc-steps",
    "grad-acc",
    "gradient-accumulate-every",
    "accumulation",
    "accum-iter",
    "accum",
    "iters-to-accumulate",
    "update-freq",
    "accumulate",
    "accum-freq",
    "accum-grad",
    "accumulation-step",
    "iter-size",
)
ACCUMULATION_CONSTANTS = Constant(tuple(name.removeprefix("--") for name in ACCUMULATION_OPTIONS.names))
"""Same names as the options."""


# Ordered: what a run observed comes before what names in the source suggest.
_HAZARDS: Final = {
    loops.CARRIED: (
        "The model's output for one batch is an input of the next call, and micro-batches hold other samples."
    ),
    loops.STEP_COUNTED: "The training loop or its schedule counts steps, so it would end early with deferred "
    "steps.",
    loops.STEP_EVALUATED: "The training loop evaluates every so many of its steps, which would happen more "
    "often with deferred steps.",
    loops.OWN_GRADIENT: (
        "The script's own code uses gradients, which are incomplete before the last micro-batch."
    ),
    loops.OWN_AVERAGE: (
        "The script's own code changes weights once per step, such as a moving average; it would run "
        "once per micro-batch."
    ),
    loops.OWN_RATE: "The loop sets the learning rate itself, for steps that would be deferred.",
    loops.UNREAD: "The source of the training loop could not be read; the loop may count steps.",
}


_ALIKE_FRAC: Final = 0.02


def is_ragged(changed: ChangedKnob) -> bool:
    """Return whether means over batches of different length accumulate, over tokens or over samples."""
    run = changed.run
    if run is None or not isinstance(changed.value, int) or changed.value <= 1:
        return False
    # Images of several sizes are one sample each, whatever their size.
    pictures = run.model is not None and (run.model.has_4d or run.model.has_5d)
    return run.input_shapes_vary and run.reduction == "mean" and not pictures


class Accumulation(Knob):
    """Micro-batches per optimizer step: keeps the effective batch when the micro-batch changes.

    Never sampled: effective batch over micro-batch. On one device the least is best.

    Effect: EXACT; TRAINING with BatchNorm and other state that changes at each call, where loader workers
    change copies of the dataset's state, and for a stream of unknown length. NUMERIC with dropout, without a
    loader, and where the loop draws random numbers for its batches. Unit: micro-batches. Source: arXiv
    2507.07101 (advises against it where memory allows the batch).
    """

    name: ClassVar[str] = "accumulation"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    derived: ClassVar[bool] = True
    unit: ClassVar[str] = "micro-batches"
    family: ClassVar[str] = "batch"
    # With Accelerate and DeepSpeed the script's own loop may derive values from its option, which come first.
    withdraws_with: ClassVar[Sequence[str]] = ("batch_size",)
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "gradient_accumulation_steps"),
        Keyword(TRAINER, "gradient_accumulation_steps", defining_module="transformers.trainer"),
        Keyword(LIGHTNING, "accumulate_grad_batches"),
        ACCUMULATION_OPTIONS,
        ACCUMULATION_CONSTANTS,
        Keyword(ACCELERATOR, "gradient_accumulation_steps"),
        Keyword(DEEPSPEED, "gradient_accumulation_steps"),
        Patch(),
    )
    rank: ClassVar[int] = 90
    memory: ClassVar[MemoryUse] = "none"
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=is_ragged,
            harm=(
                "batches differ in length, and where the loss is a mean over tokens, each micro-batch has "
                "the same weight regardless of its tokens: a slightly different objective"
            ),
            bars=False,
            source="the gradient of a mean of means is not that of the mean",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        return batching.own_factor(facts)

    def domain(self, facts: Facts) -> Sequence[Value]:
        effectives = batching.effective_values(facts)
        micro = batching.own_micro(facts)
        ladder = () if micro is None else (micro * 2**k // 8 for k in range(7) if micro * 2**k % 8 == 0)
        values = {"effective_batch": effectives, "batch_size": tuple(ladder)}
        return joined(batching.factors(values, facts), self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_count(wanted, self.own(facts), least=1)

    def refuse(self, facts: Facts) -> str | None:
        if (reason := batching.coupled(facts)) is not None:
            return reason
        undivided = None
        if self._has_own(facts):
            undivided = None if facts.run is None or is_per_item(facts) else _undivided(facts.run)
            if undivided is None:
                return None
        reasons = [self.refuse_spelling(way, facts) for way in rows(self.spellings, facts) or (Patch(),)]
        return None if None in reasons else undivided or reasons[-1]

    def _has_own(self, facts: Facts) -> bool:
        """Return whether an option or a constant of the script sets its accumulation."""
        if facts.script.flag(*ACCUMULATION_OPTIONS.names) is not None:
            return True
        own, is_owned = self.own(facts), bool(rows(self.spellings, facts))
        if own is None or is_owned:
            return False
        return not isinstance(constant_of(ACCUMULATION_CONSTANTS, facts.script, own), str)

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        run = facts.run
        owned = super().refuse_spelling(spelling, facts)
        if owned is not None or run is None:
            return owned
        if isinstance(spelling, (Flag, Constant)):
            return None if is_per_item(facts) else _undivided(run)
        if isinstance(spelling, Keyword) and is_row(spelling):
            loops_of_own = {ACCELERATOR: _of_accelerate, DEEPSPEED: _of_deepspeed}
            return refuse_accumulation(spelling, facts) or loops_of_own.get(spelling.target, _written)(facts)
        return _seams(facts, run) or _mathematics(run) or _loop(facts) or _pass(run)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if {"batch_size", "effective_batch", PROCESSES} & set(varied):
            return None
        return "Accumulation follows batch_size and effective_batch, and neither is varied."

    def follow(self, values: Mapping[str, Sequence[Value]], facts: Facts) -> Sequence[Value]:
        return batching.factors(values, facts)

    def effect_for(self, facts: Facts) -> Effect:
        if facts.run is None:
            return self.effect
        if facts.run.model is None:
            return Effect.NUMERIC
        if facts.run.model.batch_norm or facts.run.model.moves or dealt_by_batch(facts):
            return Effect.TRAINING
        if _has_unknown_end(facts.run.loader):
            return Effect.TRAINING
        # The script's own code draws batches of another size, possibly with other samples.
        own_batches = facts.run.loader is None
        return Effect.NUMERIC if _draws(facts.run) or own_batches else self.effect

    def raised(self, facts: Facts) -> str:
        run = facts.run
        if run is None or self.effect_for(facts) is self.effect:
            return ""
        if dealt := dealt_by_batch(facts):
            return dealt
        if run.model is None:
            return "No trained module was seen, so the effect of micro-batches on it is not known."
        if run.model.batch_norm:
            return "The model has BatchNorm, whose statistics depend on the batch size."
        if run.model.moves:
            return (
                "The model updates its own buffers at each call, so more micro-batches update them more "
                "often."
            )
        if _has_unknown_end(run.loader):
            return (
                "The stream's length is unknown, and the rest of a pass would be trained with the first "
                "samples of the next one."
            )
        if run.loader is None:
            return "The script makes its batches itself and may draw other samples for another batch size."
        return "Random numbers are drawn per batch, so another batch size changes them."

    def changes_rng_streams(self, facts: Facts) -> bool:
        run = facts.run
        return run is None or run.model is None or run.loader is None or _draws(run)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        known = ("batch_size", "effective_batch", *(() if self.refuse(facts) else (self.name,)))
        settled = batching.settle_batch(config, facts, known if varied is None else varied)
        if isinstance(settled, str):
            return settled
        unlike = self._unlike(settled, facts) or _sum_in_compiled_code(settled, facts)
        return unlike or graphs_forbid_accumulation(settled, facts) or settled

    def _unlike(self, settled: Config, facts: Facts) -> str | None:
        """Return why a framework would make another step of these micro-batches, or None."""
        if self.name not in settled or settled[self.name] == 1:
            return None
        own = batching.own_batch(facts)
        kept = None if own is None else own.effective
        return refuse_rest(self.spellings, facts, settled.get(batching.EFFECTIVE, kept))

    def patch(self, value: Value, patches: Patches) -> None:
        patches.accumulation.set(int(value))

    def withdraw(self, patches: Patches) -> bool:
        patches.accumulation.set(1)
        return True

    def seen(self, patches: Patches) -> Value | None:
        return patches.accumulation.observed()

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target == DEEPSPEED:
            return {"gradient_accumulation_steps": change.value}
        if target == ACCELERATOR:
            return (
                f"the file has no key for it; ACCELERATE_GRADIENT_ACCUMULATION_STEPS={change.value} in the "
                f"environment, or Accelerator(gradient_accumulation_steps={change.value})"
            )
        return None


def _sum_in_compiled_code(config: Config, facts: Facts) -> str | None:
    """Return why a summed loss inside a compiled model rules out accumulation, or None.

    The loss is not observed there, and its parts would be weighted as those of a mean.
    """
    factor = config.get("accumulation")
    if facts.run is None or facts.run.reduction != "sum" or not isinstance(factor, int) or factor <= 1:
        return None
    if config.get("compile_mode", "off") == "off":
        return None
    return (
        "The loss is a sum over the batch, which cannot be verified in compiled code, so accumulation is "
        "not used."
    )


def _draws(run: RunFacts) -> bool:
    """Return whether random numbers are drawn per batch, so that another micro-batch changes them.

    Those of a loader may be drawn in its collate function, or by the worker that makes the batch.
    """
    by_loop = run.loop_draws or loops.OWN_DRAWS in run.loop_hazards
    by_loader = run.loader is not None and run.loader.random
    return bool(by_loop) or by_loader or (run.model is not None and run.model.dropout)


def _undivided(run: RunFacts) -> str | None:
    """Return why another value of the script's own option would change the gradient, or None."""
    if not run.own_accumulation or run.reduction != "mean" or run.loss_scale is None:
        return None
    if abs(run.loss_scale - 1.0) > _ALIKE_FRAC:
        return None  # of several losses, which may have weights of their own: what a run with others shows
    return (
        f"The script adds up {run.backward_per_step:g} losses per step, each a mean, and does not divide "
        f"them: another number of parts would be a gradient of another size."
    )


def _of_processes(facts: Facts, run: RunFacts) -> str | None:
    """Return why processes cannot exchange gradients only in the last micro-batch of a step, or None."""
    if run.parallel is None:
        return (
            f"{run.ranks} processes train together without a wrapper of PyTorch's, so where they exchange "
            "gradients is not known."
        )
    return refuse_deferred(run.parallel, facts)


def _seams(facts: Facts, run: RunFacts) -> str | None:
    """Return why the step cannot be deferred, or None."""
    if run.ranks > 1 and (reason := _of_processes(facts, run)) is not None:
        return reason
    if (reason := batching.unseen(facts) if run.loader is None else _loader(run.loader)) is not None:
        return reason
    if run.optimizer is None:
        return "No optimizer was seen whose step could be deferred."
    if run.optimizer.count > 1:
        return f"{run.optimizer.count} optimizers step, and which of them should wait cannot be decided."
    if run.optimizer.closure:
        return "The optimizer step takes a closure, which may run the model any number of times."
    if run.own_scaler:
        return "The script has a gradient scaler of its own, which unscales gradients in place at each step."
    return None


def _loader(loader: LoaderFacts) -> str | None:
    if loader.batch_size is None or loader.custom_batch_sampler:
        return "autotune does not set the micro-batch here, so the optimizer step cannot be deferred."
    if loader.sizes:
        sizes = listed(loader.sizes)
        return f"Loaders of {sizes} samples train in turn, and one number of parts would not fit both."
    if loader.changed == "inside":
        what = loader.changed_at or "the dataset"
        return f"The loop changes {what} inside a pass, which would happen once a part of a step."
    if loader.beside:
        return "Batches of several loaders train, and accumulation would apply to one loader only."
    return None


def _has_unknown_end(loader: LoaderFacts | None) -> bool:
    """Return whether a pass over a stream may end within a step without the loader's knowledge."""
    if loader is None or loader.kind != "iterable" or loader.length is not None:
        return False
    return not loader.shares or bool(loader.shares[0] % (loader.batch_size or 1))


def _pass(run: RunFacts) -> str | None:
    """Return why a step could not end with its pass over the data, as that of a whole batch does, or None."""
    if run.loader is not None or run.pass_samples:
        return None
    return (
        "How many micro-batches a pass over the data has is not visible in the loop, so a step could not "
        "end with the pass."
    )


def _mathematics(run: RunFacts) -> str | None:
    """Return why the sum of deferred gradients would not be the gradient of the full batch, or None."""
    if run.own_accumulation or run.backward_per_step > 1:
        return (
            f"There are {run.backward_per_step:g} backward passes per step: the script accumulates by "
            f"itself or has several losses."
        )
    if run.backward_per_step < 1:
        return "No backward pass was seen for some steps, so gradients cannot be scaled."
    if run.explicit_backward_gradient:
        return "The script passes its own gradient to backward."
    if not run.zero_grad_seen:
        return "No zero_grad call was seen, so the reset of gradients may not be deferrable."
    if run.reduction not in ("mean", "sum"):
        return "How the loss is reduced over the batch is not known, so gradients cannot be scaled."
    return None


def _written(facts: Facts) -> str | None:
    """Return which code of the script in a framework's loop must not run once per micro-batch, or None."""
    telling = (loops.OWN_GRADIENT, loops.OWN_AVERAGE)
    hazard = next((_HAZARDS[word] for word in telling if word in facts.script.hazards), None)
    if hazard is None and facts.run is not None and facts.run.averages_apart:
        return (
            "A moving average of the weights is not updated once per step, so accumulation would change "
            "its rate."
        )
    return hazard


def _of_accelerate(facts: Facts) -> str | None:
    """Return why the loop with Accelerate rules out accumulation, or None.

    The loop decides what runs in every micro-batch. Accelerate clips at every call.
    """
    if facts.run is not None and loops.OWN_CLIPPING in facts.run.loop_hazards:
        return (
            "The loop clips gradients without asking for sync_gradients, so each micro-batch would be "
            "clipped on its own."
        )
    return _loop(facts)


def _of_deepspeed(facts: Facts) -> str | None:
    """Return why the loop with DeepSpeed rules out accumulation, or None.

    The engine advances a schedule of its configuration once per step, so the number of calls is unchanged.
    """
    return _loop(facts, scheduled=setting(facts, "deepspeed.own_schedule") is not True)


def _loop(facts: Facts, *, scheduled: bool = True) -> str | None:
    if scheduled and facts.run is not None and facts.run.scheduler_per_step:
        return (
            "The learning rate is scheduled per step, usually over the loader's length. With deferred "
            "steps the schedule would not complete."
        )
    found = {*facts.script.hazards, *(() if facts.run is None else facts.run.loop_hazards)}
    if facts.run is not None and facts.run.pass_samples:
        # The loop counts the batches of a pass, whose number grows as their size shrinks.
        found.discard(loops.STEP_COUNTED)
    hazard = next((words for word, words in _HAZARDS.items() if word in found), None)
    if hazard is None and facts.run is not None and facts.run.averages_apart:
        return (
            "A moving average of the weights is not updated once per step, so accumulation would change "
            "its rate."
        )
    return hazard
