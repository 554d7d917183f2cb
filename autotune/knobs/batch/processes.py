"""Number of processes that train together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.batch import batching
from autotune.knobs.batch.accumulation import Accumulation
from autotune.knobs.common import as_count, joined, loader_of, trains_on_cuda
from autotune.knobs.distributed.wrapper_knob import PROCESSES, parallel_of
from autotune.knobs.frameworks import ACCELERATOR
from autotune.model.change import Launcher, Spelling
from autotune.model.distributed_launch import MOST_RANKS, nodes_of, ranks_of
from autotune.model.effect import Effect, strictest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.traits import ActsAt, Fields
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

_OWNERS: Final = {
    "lightning": "Lightning's Trainer is given its number of processes by the script.",
    "deepspeed": "DeepSpeed's batch is a product of entries, of which the script may set any.",
}
"""Framework -> why the launcher alone does not set the number of processes, or not at the same batch."""


class Processes(Knob):
    """Number of processes that the launcher starts on this machine, at the same effective batch.

    The micro-batch of each process follows. Searched only where it is named: ``--knob processes``.

    Effect: EXACT (another order of summation); NUMERIC with dropout and other random numbers per batch;
    TRAINING with BatchNorm, with a summed loss, and where processes may take other samples.
    Unit: processes. Source: PyTorch `DistributedDataParallel` docs (gradients are averaged over processes).
    """

    name: ClassVar[str] = PROCESSES
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "processes"
    family: ClassVar[str] = "batch"
    requires: ClassVar[Sequence[str]] = ("batch_size",)
    spellings: ClassVar[Sequence[Spelling]] = (Launcher(),)
    rank: ClassVar[int] = 400
    acts_at: ClassVar[ActsAt] = "construction"

    def own(self, facts: Facts) -> Value | None:
        if facts.run is not None:
            return facts.run.ranks
        return ranks_of(facts.launcher) if facts.launcher else None

    def domain(self, facts: Facts) -> Sequence[Value]:
        own = self.own(facts)
        if not isinstance(own, int):
            return ()
        ladder = {own * 2**k for k in range(7)} | {own // 2**k for k in range(7) if own % 2**k == 0}
        return joined((n for n in ladder if n <= _most(own, facts)), own)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        own = self.own(facts)
        if wanted == "asis":
            return own
        count = as_count(wanted, own, least=1)
        most = _most(own if isinstance(own, int) else 1, facts)
        return count if count is not None and (count <= most or count == own) else None

    def refuse(self, facts: Facts) -> str | None:
        if not facts.launcher:
            return "No launcher starts the processes, so their number is the script's own."
        if nodes_of(facts.launcher) > 1:
            return (
                "The launcher starts processes on several machines, and only one machine's number is varied."
            )
        run = facts.run
        if run is None:
            return None
        if run.ranks == 1:
            return (
                "One process trains, so its exchange of gradients is not known; start the search with more."
            )
        if run.ranks != ranks_of(facts.launcher):
            return "The script starts processes itself, whatever the launcher's number is."
        parallel = parallel_of(facts)
        if parallel is None or parallel.wrapper != "ddp":
            return "No DistributedDataParallel was seen, by which gradients are averaged over all processes."
        if (owned := next((why for name, why in _OWNERS.items() if name in run.owners), None)) is not None:
            return owned
        if batching.own_batch(facts) is None:
            return "The script's own batch could not be read, so it cannot be kept."
        return batching.unseen(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if {"batch_size", "accumulation"} & set(varied):
            return None
        return (
            "Another number of processes would change the effective batch, because neither batch_size nor "
            "accumulation can make up for it."
        )

    def effect_for(self, facts: Facts) -> Effect:
        if facts.run is None:
            return self.effect
        return Effect.TRAINING if _unlike(facts) else strictest(self.effect, Accumulation().effect_for(facts))

    def raised(self, facts: Facts) -> str:
        return (_unlike(facts) if facts.run is not None else "") or Accumulation().raised(facts)

    def changes_rng_streams(self, facts: Facts) -> bool:
        return Accumulation().changes_rng_streams(facts)

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        count, loader = config.get(self.name), loader_of(facts)
        if not isinstance(count, int):
            return config
        samples = None if loader is None else loader.dataset_length
        if samples and not _is_uneven(facts) and samples % count:
            return f"{samples} samples cannot be divided over {count} processes, so some would be repeated."
        known = (self.name, "batch_size", *(() if Accumulation().refuse(facts) else ("accumulation",)))
        return batching.settle_batch(config, facts, known if varied is None else varied)

    def seen(self, patches: Patches) -> Value | None:
        return patches.distributed.observed(self.name)

    def exported(self, change: Change, target: str, changed: object) -> Fields:
        return {"num_processes": change.value} if target == ACCELERATOR else None


def _most(own: int, facts: Facts) -> int:
    """Return the largest number: on devices the script's own, which the search reserves; else one per CPU."""
    most = own if trains_on_cuda(facts) and facts.run is not None else facts.host.cpus
    return min(max(own, most), MOST_RANKS)


def _is_uneven(facts: Facts) -> bool:
    """Return whether the samples cannot be divided evenly over the script's own processes."""
    loader, run = loader_of(facts), facts.run
    return bool(run and loader and loader.dataset_length and loader.dataset_length % run.ranks)


def _unlike(facts: Facts) -> str:
    """Return why another number of processes trains otherwise, as a whole sentence, or ""."""
    run, loader = facts.run, loader_of(facts)
    assert run is not None
    if run.reduction != "mean":
        return "Gradients are averaged over processes, so the size of a summed loss depends on their number."
    if loader is None or not loader.is_split:
        return "No DistributedSampler was seen, so another number of processes may take other samples."
    if _is_uneven(facts):
        return "Samples are not divided evenly, so how many are repeated depends on the number of processes."
    return ""
