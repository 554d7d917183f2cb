"""Threads of one operation on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_count, flag_variants, joined, per_rank, trains_on_cuda
from autotune.knobs.loader.num_workers import workers_of
from autotune.knobs.traits import Prior
from autotune.model.change import Env, Flag, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Value
    from autotune.model.facts import Facts


_OPTIONS: Final = flag_variants(
    "num-threads", "threads", "nthreads", "n-threads", "torch-threads", "cpu-threads", "omp-num-threads"
)


class Threads(Knob):
    """Threads of one operation on the CPU: too many wait for each other, and for loader workers.

    Several processes share the cores out. Set by ``OMP_NUM_THREADS`` before the process starts, else by
    ``torch.set_num_threads``. Where the script calls that, only by an option of the script.

    Effect: EXACT (another order of summation). Unit: threads. Source: PyTorch performance tuning
    guide, "CPU specific optimizations".
    """

    name: ClassVar[str] = "threads"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "threads"
    family: ClassVar[str] = "threads"
    spellings: ClassVar[Sequence[Spelling]] = (_OPTIONS, Env("OMP_NUM_THREADS"), Patch())
    rank: ClassVar[int] = 110
    prior: ClassVar[Prior] = Prior(spread=0.25)
    acts_at: ClassVar[ActsAt] = "construction"

    def own(self, facts: Facts) -> Value | None:
        read = None if facts.run is None else facts.run.threads
        return read or facts.value(self.name)

    def domain(self, facts: Facts) -> Sequence[Value]:
        cores = per_rank(facts.host.physical_cores, facts)
        return joined({cores, max(1, cores - 1), max(1, cores // 2), 1}, self.own(facts))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        cores = per_rank(facts.host.physical_cores, facts)
        workers = workers_of(None, facts) or 0
        named = {
            "physical": cores,
            "physical-1": max(1, cores - 1),
            "physical_minus_1": max(1, cores - 1),
            "physical_minus_workers": max(1, cores - workers),
            "half": max(1, cores // 2),
        }
        if wanted == "asis":
            return self.own(facts)
        if isinstance(wanted, str) and wanted in named:
            return named[wanted]
        return as_count(wanted, self.own(facts), least=1)

    def refuse(self, facts: Facts) -> str | None:
        if trains_on_cuda(facts):
            return "Training runs on an NVIDIA device, where threads of CPU operations have little effect."
        if _sets_them(facts) and facts.script.flag(*_OPTIONS.names) is None:
            return "The script sets the number of threads itself (torch.set_num_threads), without an option."
        return None

    def refuse_spelling(self, spelling: Spelling, facts: Facts) -> str | None:
        if isinstance(spelling, Flag):
            # Many options of that name set the number of loader processes.
            return None if _sets_them(facts) else "Its option did not set PyTorch's threads."
        if _sets_them(facts):
            return "The script sets the number of threads itself, by torch.set_num_threads, after that."
        return super().refuse_spelling(spelling, facts)

    def patch(self, value: Value, patches: Patches) -> None:
        torch = patches.torch
        patches.call(torch.set_num_threads, value, undo=torch.get_num_threads())

    def seen(self, patches: Patches) -> Value | None:
        return int(patches.torch.get_num_threads())


def _sets_them(facts: Facts) -> bool:
    """Return whether the script was observed to set them, regardless of the environment."""
    return facts.run is not None and facts.run.sets_threads
