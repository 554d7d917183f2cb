"""Size of the buckets in which gradients are exchanged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.distributed.wrapper_knob import DistributedKnob, parallel_of
from autotune.knobs.frameworks import ARGUMENTS, LIGHTNING_DDP
from autotune.model.change import Keyword, Patch, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.knobs.traits import ActsAt, Fields
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import Facts, ParallelFacts

_LADDER_MB: Final = (10, 25, 50, 100, 200)
"""Around PyTorch's default of 25; larger ones than 200 were not reported to help (pytorch#118421)."""
_MB: Final = 2**20
_FIRST_MB: Final = 1
"""Size of the first bucket where the script names none (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`)."""


class DdpBucketCapMb(DistributedKnob):
    """Size of the buckets in which gradients are exchanged: fewer exchanges, or an earlier first one.

    Values around the script's own, and ``one_bucket`` for all gradients.

    Effect: EXACT (another order of summation). Unit: MiB. Source: torch.nn.parallel.DistributedDataParallel
    docs, `bucket_cap_mb`; pytorch#118421.
    """

    name: ClassVar[str] = "ddp_bucket_cap_mb"
    effect: ClassVar[Effect] = Effect.EXACT
    ordinal: ClassVar[bool] = True
    unit: ClassVar[str] = "MiB"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "ddp_bucket_cap_mb"),
        Keyword(LIGHTNING_DDP, "bucket_cap_mb"),
        Patch(),
    )
    rank: ClassVar[int] = 300
    acts_at: ClassVar[ActsAt] = "construction"
    first_value: ClassVar[Value | None] = "one_bucket"

    def domain(self, facts: Facts) -> Sequence[Value]:
        own, whole = self.own(facts), _whole_mb(parallel_of(facts))
        known = {float(own)} if isinstance(own, (int, float)) and not isinstance(own, bool) else set[float]()
        sizes = {float(mb) for mb in _LADDER_MB if mb < (whole or math.inf)} | known
        sizes |= {float(whole)} if whole else set[float]()
        return tuple(int(mb) if mb == int(mb) else mb for mb in sorted(sizes))

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        if wanted == "asis":
            return self.own(facts)
        if wanted == "one_bucket":
            return _whole_mb(parallel_of(facts))
        if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0 < wanted < math.inf:
            return None
        return int(wanted) if wanted == int(wanted) else wanted

    def refuse_wrapper(self, parallel: ParallelFacts, facts: Facts) -> str | None:
        own = self.own(facts)
        assert isinstance(own, (int, float))
        if parallel.gradient_bytes <= _MB * min(_FIRST_MB, own):
            return "All gradients fit into the first bucket."
        return None

    def arguments(self, value: Value, spelling: Keyword) -> Mapping[str, Value | None]:
        whole = isinstance(value, float) and value.is_integer()
        return {spelling.name: int(value) if whole else value}

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        if target == ARGUMENTS and isinstance(change.value, float) and not change.value.is_integer():
            return f"`{self.name}` is a whole number of MiB"
        return None


def _whole_mb(parallel: ParallelFacts | None) -> int | None:
    """Return the size that holds all gradients in one bucket."""
    return None if parallel is None else math.ceil(parallel.gradient_bytes / _MB) or None
