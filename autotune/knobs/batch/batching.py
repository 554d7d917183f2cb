"""Arithmetic of micro-batch, accumulation and effective batch, which change together. Standard library only.

``effective = micro x accumulation x processes`` always holds. The processes are those that train together,
each with its own micro-batches. What a config does not name keeps the script's own value, except for
accumulation, which always follows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.knobs.common import constants_named, counted_by_batch, listed, no_loader
from autotune.knobs.distributed.wrapper_knob import PROCESSES
from autotune.model.change import Constant
from autotune.model.facts import OPTION, REPORTED
from autotune.source import loops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts, InputFacts

MICRO: Final = "batch_size"
FACTOR: Final = "accumulation"
EFFECTIVE: Final = "effective_batch"
BATCH_CONSTANTS: Final = Constant(
    (
        "batch_size",
        "train_batch_size",
        "per_device_train_batch_size",
        "micro_batch_size",
        "mini_batch_size",
        "device_batch_size",
        "train_bs",
        "batch",
        "bs",
        "B",
    )
)
"""Names of the batch size in scripts; an upper-case ``B`` is common in language models."""
_GATHERS: Final = (
    "The script collects its samples during training, so another batch size would change how often each "
    "sample is used."
)


_GROWS: Final = (
    "The loop adds collected samples to the dataset of its loader, so another batch size would change what "
    "is collected next."
)


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """The script's own: samples per micro-batch, micro-batches per step, samples per step."""

    micro: int
    factor: int
    ranks: int = 1

    @property
    def effective(self) -> int:
        """Samples per optimizer step."""
        return self.of(self.micro, self.factor)

    @property
    def each(self) -> str:
        """Text after a micro-batch if several processes have one, or ""."""
        return "" if self.ranks == 1 else f" in each of {self.ranks} processes"

    def of(self, micro: int, factor: int) -> int:
        """Return the samples per optimizer step with this micro-batch and accumulation."""
        return micro * factor * self.ranks


def own_micro(facts: Facts) -> int | None:
    """Return the script's own micro-batch, or None if it could not be read."""
    read = _count(facts.value(MICRO))
    if read is None and facts.run is not None and facts.run.loader is not None:
        read = _count(facts.run.loader.batch_size)
    return read


def own_factor(facts: Facts) -> int | None:
    """Return the script's own accumulation: 1 if the run showed none, None before a run.

    Several backward passes per step are not accumulation by themselves: a GAN or several losses use them on
    one batch.
    """
    if facts.run is None:
        return None
    return (_count(facts.value(FACTOR)) or 1) if facts.run.own_accumulation else 1


def own_batch(facts: Facts) -> OwnBatch | None:
    """Return the script's own batch, or None if the micro-batch could not be read."""
    micro, factor = own_micro(facts), own_factor(facts)
    ranks = 1 if facts.run is None else facts.run.ranks
    return OwnBatch(micro, factor, ranks) if micro is not None and factor is not None else None


def shown(facts: Facts) -> InputFacts | None:
    """Return the model's input that shows the batch size of the script's own option, or None.

    This also holds for a script that reports its samples itself.
    """
    run = facts.run
    if run is None or run.loader is not None or run.inputs is None or not run.inputs.counts:
        return None
    # A closure may run the model any number of times.
    closure = run.optimizer is not None and run.optimizer.closure
    return None if closure or run.samples_source not in (OPTION, REPORTED) else run.inputs


def unseen(facts: Facts) -> str | None:
    """Return why the samples of a batch cannot be varied because they are not observed, or None.

    Without a loader their number is that of the script's own option, if an input of the model shows it.
    """
    run = facts.run
    if (reason := coupled(facts)) is not None:
        return reason
    reason = no_loader(facts)
    if run is None or reason is None or shown(facts) is not None:
        return None
    found = run.inputs
    if found is None:
        return f"{reason} {_how_to_name(facts)}".strip()
    if not found.dims and found.rare_frac:
        why = (
            f"only {100 * found.rare_frac:.0f} % of the model's calls have the size {found.batch_size} of "
            "its batch_size"
        )
    elif not found.dims:
        why = f"no input of the model has the size {found.batch_size} of its batch_size"
    elif not found.counts:
        why = f"there are {found.calls_per_backward:.3g} calls of the model per backward pass"
    else:
        why = "the optimizer decides how many batches it reads per step"
    if run.samples_source == REPORTED:
        # The samples are known then: the script reports them.
        return (
            f"No training DataLoader was seen, and {why}, so the effect of another batch size cannot be "
            "observed."
        )
    return f"No training DataLoader was seen, and {why}, so the samples of a step are not known."


def _how_to_name(facts: Facts) -> str:
    """Return what allows to vary the batch of a script without a loader, as a whole sentence."""
    named = constants_named(BATCH_CONSTANTS.names, facts.script)
    if named:
        places, one = listed(constant.place for constant in named), named[0].name
        return f"Which constant is the size of a batch is not known: {places}; --set {one}=A,B names one."
    return "It can be varied once the script has an option or a constant called batch_size."


def coupled(facts: Facts) -> str | None:
    """Return why batches of another size would hold other samples, or None."""
    run = facts.run
    # An iterable dataset may yield as many samples as requested, however few were gathered.
    if run is not None and run.gathers and (run.loader is None or run.loader.kind == "iterable"):
        return _GATHERS
    if run is not None and loops.GROWN in run.loop_hazards:
        return _GROWS
    return counted_by_batch(facts)


def effective_bounds(facts: Facts) -> tuple[int, int] | None:
    """Return the smallest and the largest effective batch that the user's rule allows.

    Returns:
        None where the script's own is not known, or the rule is none of ``explore``, ``keep``,
        ``LO..HI``.
    """
    own = own_batch(facts)
    if own is None:
        return None
    rule = facts.effective_batch_rule
    if rule == "keep":
        return own.effective, own.effective
    if rule == "explore":
        return max(1, own.effective // 2), max(own.effective, min(own.effective * 8, _most(facts)))
    low, dots, high = rule.partition("..")
    if dots and low.strip().isdecimal() and high.strip().isdecimal():
        return int(low), int(high)
    return None


def _most(facts: Facts) -> int:
    """Return the largest number of samples per step: a step ends with the pass over the data."""
    loader = facts.run.loader if facts.run is not None else None
    whole = loader.dataset_length if loader is not None else None
    return sys.maxsize if whole is None else whole


def effective_values(facts: Facts) -> tuple[int, ...]:
    """Return the effective batches to search: the script's own by powers of two, in the rule's bounds."""
    own, bounds = own_batch(facts), effective_bounds(facts)
    if own is None or bounds is None:
        return () if own is None else (own.effective,)
    low, high = bounds
    ladder = {own.effective * 2**k for k in range(20)}
    ladder |= {own.effective // 2**k for k in range(20) if own.effective % 2**k == 0}
    inside = {value for value in ladder if low <= value <= high}
    if facts.effective_batch_rule not in ("explore", "keep") and not inside - {own.effective}:
        inside = {value for value in (low, high) if value >= 1}
    return tuple(sorted(inside | {own.effective}))


def settle_batch(config: Config, facts: Facts, varied: Collection[str]) -> Config | str:
    """Return the config with consistent batch knobs, or why there is none.

    Without accumulation, the micro-batch alone changes the effective batch, and the config has to name both.
    """
    own = own_batch(facts)
    if own is None or not {MICRO, EFFECTIVE, PROCESSES} & set(config):
        return config.without(FACTOR)
    kept = own.effective
    effective = _count(config.get(EFFECTIVE, kept))
    micro = _count(config.get(MICRO, own.micro))
    ranks = _count(config.get(PROCESSES, own.ranks))
    if effective is None or micro is None or ranks is None:
        return f"A batch size is a whole number of samples, not {config.text()}."
    if ranks != own.ranks:
        own = replace(own, ranks=ranks)
        # A space drops the script's own micro-batch, so naming it is the same as naming none.
        config = config.without(MICRO) if micro == own.micro else config
        if MICRO not in config and MICRO in varied and effective % own.of(1, own.factor) == 0:
            micro = effective // own.of(1, own.factor)
    if FACTOR not in varied:
        return _without_factor(config, own, effective, micro, kept)
    whole = own.of(micro, 1)
    if whole > effective and MICRO not in config and MICRO in varied and effective % own.ranks == 0:
        micro, whole = effective // own.ranks, effective
    if whole > effective:
        return (
            f"A micro-batch of {micro}{own.each} does not fit into an effective batch of {effective}; "
            f"a larger effective_batch has to be named."
        )
    if effective % whole:
        return f"A micro-batch of {micro}{own.each} does not divide the effective batch of {effective}."
    return _named(config, own, micro, effective // whole, kept)


def _without_factor(config: Config, own: OwnBatch, effective: int, micro: int, kept: int) -> Config | str:
    if MICRO not in config:
        if effective % own.of(1, own.factor):
            return (
                f"An effective batch of {effective} is no multiple of {own.of(1, own.factor)} micro-batches."
            )
        micro = effective // own.of(1, own.factor)
    made = own.of(micro, own.factor)
    if made != effective:
        return (
            f"A batch_size of {micro}{own.each} makes the effective batch {made}, not {effective}, "
            f"because accumulation cannot make up for it here; effective_batch={made} "
            f"has to be named with it."
        )
    return _named(config, own, micro, own.factor, kept)


def _named(config: Config, own: OwnBatch, micro: int, factor: int, kept: int) -> Config:
    """Return the config with the batch knobs that differ; `kept` is the script's own effective batch."""
    settled = config.without(MICRO, FACTOR, EFFECTIVE)
    if micro != own.micro:
        settled = settled.with_(**{MICRO: micro})
    if factor != own.factor:
        settled = settled.with_(**{FACTOR: factor})
    if own.of(micro, factor) != kept:
        settled = settled.with_(**{EFFECTIVE: own.of(micro, factor)})
    return settled


def factors(values: Mapping[str, Sequence[Value]], facts: Facts) -> tuple[int, ...]:
    """Return every accumulation that these micro-batches and effective batches can need."""
    own = own_batch(facts)
    if own is None:
        return ()
    micros = {*_counts(values.get(MICRO, ())), own.micro}
    effectives = {*_counts(values.get(EFFECTIVE, ())), own.effective}
    counts = {*_counts(values.get(PROCESSES, ())), own.ranks}
    each = {e // ranks for e in effectives for ranks in counts if e % ranks == 0}
    micros |= each if MICRO in values else set()
    return tuple(sorted({e // m for e in each for m in micros if e % m == 0}))


def micros(values: Mapping[str, Sequence[Value]], facts: Facts) -> tuple[int, ...]:
    """Return every micro-batch that these effective batches need without a change of accumulation."""
    own = own_batch(facts)
    if own is None:
        return ()
    effectives = {*_counts(values.get(EFFECTIVE, ())), own.effective}
    leasts = {own.factor * ranks for ranks in {*_counts(values.get(PROCESSES, ())), own.ranks}}
    return tuple(sorted({e // least for e in effectives for least in leasts if e % least == 0}))


def _counts(values: Sequence[Value]) -> set[int]:
    return {count for count in map(_count, values) if count is not None}


def _count(value: Value | None) -> int | None:
    plain = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if plain and isinstance(value, int) else None
