"""Parts shared by knobs that are keywords of `torch.utils.data.DataLoader`. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from autotune.knobs.base import Knob, Patches
from autotune.knobs.common import as_switch, loader_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.knobs.traits import ActsAt
    from autotune.model.config import Value
    from autotune.model.facts import Facts


class LoaderKeyword(Knob):
    """A knob with the name of its keyword, applied where the loader is constructed."""

    acts_at: ClassVar[ActsAt] = "construction"
    feeds: ClassVar[bool] = True

    def patch(self, value: Value, patches: Patches) -> None:
        patches.loader.override(self.name, value)

    def seen(self, patches: Patches) -> Value | None:
        return patches.loader.observed(self.name)


class LoaderSwitch(LoaderKeyword):
    """A keyword that is on or off, with a field of its name in `LoaderFacts`."""

    def own(self, facts: Facts) -> Value | None:
        loader = loader_of(facts)
        read = facts.value(self.name)
        return read if read is not None or loader is None else getattr(loader, self.name)

    def domain(self, facts: Facts) -> Sequence[Value]:
        return (False, True)

    def resolve(self, wanted: Value, facts: Facts) -> Value | None:
        return self.own(facts) if wanted == "asis" else as_switch(wanted)
