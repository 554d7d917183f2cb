"""A pick as keywords of `lightning.Trainer` and of the script's DataLoader. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.export.formats.content import (
    Exported,
    Left,
    about_accumulation,
    arguments_of,
    fields_of,
    json_text,
    python_dict,
    translated,
    why_left,
)
from autotune.export.formats.parallel import DDP_ARGUMENTS, strategy_argument
from autotune.knobs.common import LOADER
from autotune.knobs.frameworks import LIGHTNING

if TYPE_CHECKING:
    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change
    from autotune.model.config import Value

_WITHOUT_WORKERS: Final = {"prefetch_factor": None, "persistent_workers": False}
"""Arguments that are an error without worker processes, with the DataLoader's own defaults."""


def lightning_keywords(tuned: TunedValues, *, keywords: bool) -> Exported:
    """Return keywords for the Trainer, its strategy and the training loader, which the script builds.

    Args:
        tuned: The pick.
        keywords: Return Python source to paste or import; False: JSON.
    """
    trainer: dict[str, Value | None] = {}
    loader: dict[str, Value | None] = {}
    strategy: dict[str, Value | None] = {}
    included: list[Change] = []
    left: list[Left] = []
    for change in tuned.changes:
        own, of_loader = fields_of(change, LIGHTNING, tuned), arguments_of(change, (LOADER,))
        if own is not None and not isinstance(own, str):
            trainer |= own
        elif of_loader is not None:
            loader |= of_loader
        elif change.knob in DDP_ARGUMENTS:
            strategy[DDP_ARGUMENTS[change.knob]] = change.value
        else:
            call = strategy_argument(change)
            reason = own or (f"it is not a literal: {call}" if call else why_left(change, "the Trainer"))
            left.append(Left(knob=change.knob, value=change.value, reason=reason))
            continue
        included.append(change)
    if loader.get("num_workers") == 0:
        loader = {**loader, **_WITHOUT_WORKERS}
    data = {"trainer": trainer, "loader": loader, **({"strategy": strategy} if strategy else {})}
    return Exported(
        text="".join(python_dict(name, values) for name, values in data.items())
        if keywords
        else json_text(data),
        data=data,
        included=tuple(change.knob for change in included),
        left=tuple(left),
        notes=(
            *translated(included, LIGHTNING, LOADER),
            *about_accumulation(included, LIGHTNING),
            *(["`strategy` is for Trainer(strategy=DDPStrategy(**strategy))"] if strategy else []),
        ),
        comment="#" if keywords else "",
    )
