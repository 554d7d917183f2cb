"""A pick as fields of `transformers.TrainingArguments`, by their names in transformers 5. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.export.formats.content import (
    Exported,
    Left,
    about_accumulation,
    fields_of,
    is_by,
    json_text,
    python_dict,
    translated,
    why_left,
)
from autotune.export.formats.parallel import training_argument
from autotune.knobs.frameworks import ARGUMENTS, TRAINER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change
    from autotune.model.config import Value

_NEWER: Final = ("dataloader_multiprocessing_context", "dataloader_in_order")
"""Fields of newer versions; they exist in 5.23."""


def training_arguments(tuned: TunedValues, *, keywords: bool) -> Exported:
    """Return the fields that set the pick in a script that trains through the Trainer.

    Args:
        tuned: The pick.
        keywords: Return Python source to paste or import; False: JSON for `HfArgumentParser`.
    """
    fields: dict[str, Value | None] = {}
    first_fields: dict[str, Value | None] = {}
    included: list[Change] = []
    left: list[Left] = []
    for change in tuned.changes:
        found = fields_of(change, ARGUMENTS, tuned) or training_argument(change)
        found = found or why_left(change, "TrainingArguments")
        if isinstance(found, str):
            left.append(Left(knob=change.knob, value=change.value, reason=found))
            continue
        included.append(change)
        first = dict(list(found.items())[:1])
        first_fields |= first
        fields |= found
    # What one knob brings along never replaces what another one is about.
    fields |= first_fields
    return Exported(
        text=python_dict("training_arguments", fields) if keywords else json_text(fields),
        data={"training_arguments": fields},
        included=tuple(change.knob for change in included),
        left=tuple(left),
        notes=(*translated(included, ARGUMENTS, TRAINER), *_notes(included, fields)),
        comment="#" if keywords else "",
    )


def _notes(included: list[Change], fields: Mapping[str, Value | None]) -> list[str]:
    notes = about_accumulation(included, ARGUMENTS, TRAINER)
    if any(is_by(change, TRAINER) for change in included):
        notes.append(
            "set `trainer.loss_is_scaled_for_ga = False` on the Trainer as well: "
            "this model's loss is a plain mean, and the Trainer would not divide it by the parts"
        )
    if fields.get("torch_compile") and any(
        c.knob == "compile_mode" and not is_by(c, ARGUMENTS) for c in included
    ):
        notes.append("`torch_compile` turns TF32 on as well, on devices that have it")
    if "gradient_checkpointing" in fields:
        notes.append("newer releases of transformers call the field `activation_checkpointing`")
    if newer := [f"`{name}`" for name in _NEWER if name in fields]:
        names = ", ".join(newer)
        notes.append(f"older releases of transformers 5 lack {names}; 5.23 has it")
    return notes
