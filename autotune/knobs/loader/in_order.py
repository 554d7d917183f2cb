"""Order of batches: that of their requests, or that of their completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from autotune.knobs.common import LOADER, loader_of, no_loader, torch_version
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.loader.loader_keyword import LoaderSwitch
from autotune.knobs.loader.num_workers import workers_of
from autotune.knobs.loader.prefetch_factor import without_workers
from autotune.knobs.traits import LateHarm
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autotune.knobs.traits import Fields
    from autotune.model.change import Change
    from autotune.model.config import Config, Value
    from autotune.model.facts import Facts

_SINCE: Final = (2, 6)
_FEWEST_WORKERS: Final = 2


class InOrder(LoaderSwitch):
    """Batches in the order of their requests: without it, none waits for a slower one.

    Only with two workers or more, and useful where batches take unequal time. Slow samples are then
    trained on later.

    Effect: TRAINING (the order of samples). Unit: on or off. Source: torch.utils.data docs,
    `in_order`, which warns of a skewed data distribution.
    """

    name: ClassVar[str] = "in_order"
    effect: ClassVar[Effect] = Effect.TRAINING
    family: ClassVar[str] = "loader"
    spellings: ClassVar[Sequence[Spelling]] = (Keyword(LOADER, "in_order"),)
    rank: ClassVar[int] = 270
    late_harms: ClassVar[Sequence[LateHarm]] = (
        LateHarm(
            applies=lambda changed: changed.value is False,
            harm="samples that are slow to load arrive late, which changes the order of the training data",
            source="torch.utils.data.DataLoader docs, in_order",
        ),
    )

    def own(self, facts: Facts) -> Value | None:
        read = facts.value(self.name)
        return True if read is None and loader_of(facts) is not None else read

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (True, False)

    def refuse(self, facts: Facts) -> str | None:
        version = torch_version(facts)
        if version is not None and version < _SINCE:
            return "The loader's `in_order` came with PyTorch 2.6, and this one is older."
        return no_loader(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        if facts.run is not None and workers_of(None, facts) == 1 and "num_workers" not in varied:
            return "The loader has one worker, whose batches come in order anyway."
        return without_workers(facts, varied)

    def changes_rng_streams(self, facts: Facts) -> bool:
        return True

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        workers = workers_of(config.get("num_workers"), facts) or 0
        return config if workers >= _FEWEST_WORKERS else config.without(self.name)

    def exported(self, change: Change, target: str, changed: Mapping[str, Value]) -> Fields:
        return {"dataloader_in_order": change.value} if target == ARGUMENTS else None
