"""Loader workers that outlive an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.common import LOADER, dealt_otherwise, flag_variants, loader_of, no_loader
from autotune.knobs.frameworks import ARGUMENTS
from autotune.knobs.loader.loader_keyword import LoaderSwitch
from autotune.knobs.loader.num_workers import workers_of
from autotune.knobs.loader.prefetch_factor import without_workers
from autotune.knobs.traits import Prior
from autotune.model.change import Keyword, Spelling
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.knobs.base import Patches
    from autotune.model.config import Config
    from autotune.model.facts import Facts


class PersistentWorkers(LoaderSwitch):
    """Loader workers that stay alive between epochs: saves their start, mostly in short epochs.

    Only with workers. Invisible in a steady rate, visible over whole epochs.

    Effect: EXACT; NUMERIC where random numbers are drawn: workers keep their streams, and the next epoch
    draws no seed for them, so its order differs. TRAINING where a fetch changes the dataset or the
    collate function: new workers would start from the main process's copy. Unit: on or off. Source:
    torch.utils.data docs, `persistent_workers`.
    """

    name: ClassVar[str] = "persistent_workers"
    effect: ClassVar[Effect] = Effect.EXACT
    family: ClassVar[str] = "loader"
    spellings: ClassVar[Sequence[Spelling]] = (
        Keyword(ARGUMENTS, "dataloader_persistent_workers"),
        flag_variants("persistent-workers", "dataloader-persistent-workers"),
        Keyword(LOADER, "persistent_workers"),
    )
    rank: ClassVar[int] = 170
    prior: ClassVar[Prior] = Prior(is_of_loading=True)

    def refuse(self, facts: Facts) -> str | None:
        loader = loader_of(facts)
        if loader is not None and loader.changed and not loader.persistent_workers:
            what = loader.changed_at or "the dataset"
            return f"The script changes {what} as it trains; workers that outlive a pass keep their own."
        if loader is not None and loader.rebuilt:
            return "A new loader is built for every pass, and workers end with it."
        if "forks" in facts.script.hazards and (loader is None or not loader.persistent_workers):
            return (
                "The script forks a child of its own, which may wait for the end of a pipe that living "
                "workers hold open."
            )
        return no_loader(facts)

    def idle(self, facts: Facts, varied: Collection[str]) -> str | None:
        return without_workers(facts, varied)

    def effect_for(self, facts: Facts) -> Effect:
        if dealt_otherwise(facts):
            return Effect.TRAINING
        return Effect.NUMERIC if self.changes_rng_streams(facts) else self.effect

    def raised(self, facts: Facts) -> str:
        if dealt := dealt_otherwise(facts):
            return dealt
        if not self.changes_rng_streams(facts):
            return ""
        return "Later passes draw other random numbers unless workers are restarted."

    def changes_rng_streams(self, facts: Facts) -> bool:
        loader, run = loader_of(facts), facts.run
        model = None if run is None else run.model
        masks = model is not None and model.dropout and not model.device.startswith("cuda")
        masks = masks or (run is not None and run.loop_draws == "host")
        held = loader is not None and loader.fetch_state is not None
        return masks or held or (loader is not None and (loader.random or loader.shuffles))

    def settle(self, config: Config, facts: Facts, varied: Collection[str] | None = None) -> Config | str:
        return config if workers_of(config.get("num_workers"), facts) else config.without(self.name)

    def withdraw(self, patches: Patches) -> bool:
        return patches.loader.give_back("persistent_workers")
