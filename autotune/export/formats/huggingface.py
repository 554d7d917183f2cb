"""A pick as fields of `transformers.TrainingArguments`, by their names in transformers 5. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.export.formats.content import (
    Exported,
    Left,
    about_accumulation,
    arguments_of,
    is_by,
    json_text,
    python_dict,
    translated,
    why_left,
)
from autotune.knobs.frameworks import ARGUMENTS, TRAINER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change
    from autotune.model.config import Value

_NEWER: Final = {
    "mp_context": "dataloader_multiprocessing_context",
    "in_order": "dataloader_in_order",
}
"""Fields that came late; they exist in 5.23."""
_DDP: Final = ("ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_static_graph")
"""Knobs that are fields of the same name; the bucket's is a whole number."""
_REASONS: Final = {
    "attention_backend": "this is set on the model (`attn_implementation`), not in TrainingArguments",
    "pure_bf16": "`bf16` keeps the weights in float32; load the model in bfloat16 for this",
}


def training_arguments(tuned: TunedValues, *, keywords: bool) -> Exported:
    """Fields that set the pick in a script that trains through the Trainer.

    Args:
        tuned: The pick.
        keywords: As Python to paste or to import; otherwise JSON, as `HfArgumentParser` reads it.
    """
    fields: dict[str, Value | None] = {}
    asked: dict[str, Value | None] = {}
    said: list[Change] = []
    left: list[Left] = []
    for change in tuned.changes:
        found = _fields(change)
        if isinstance(found, str):
            left.append(Left(knob=change.knob, value=change.value, reason=found))
            continue
        said.append(change)
        first = dict(list(found.items())[:1])
        asked |= first
        fields |= found
    # What one knob brings along never replaces what another one is about.
    fields |= asked
    return Exported(
        text=python_dict("training_arguments", fields) if keywords else json_text(fields),
        data={"training_arguments": fields},
        said=tuple(change.knob for change in said),
        left=tuple(left),
        notes=(*translated(said, ARGUMENTS, TRAINER), *_notes(said, fields)),
        comment="#" if keywords else "",
    )


def _fields(change: Change) -> Mapping[str, Value | None] | str:
    """The fields, or why there are none."""
    match change.knob:
        case "fused_optimizer" if not is_by(change, ARGUMENTS):
            return "`optim` sets the optimizer as well as its kernel, and the script uses its own optimizer"
        case "tf32":
            if change.value in ("high", "medium"):
                return {"tf32": True}
            return "`tf32=False` also disables TF32 in convolutions, unlike this value"
        case "activation_checkpointing":
            known = {"full": True, "none": False}
            if str(change.value) not in known:
                return "`gradient_checkpointing` covers all blocks or none"
            return {"gradient_checkpointing": known[str(change.value)]}
        case "mp_context" | "in_order":
            return {_NEWER[change.knob]: change.value}
        case knob if knob in _DDP:
            value = change.value
            if isinstance(value, float):
                return {knob: int(value)} if value.is_integer() else f"`{knob}` is a whole number of MiB"
            return {knob: value}
        case _:
            found = arguments_of(change, (ARGUMENTS,))
            return found or _REASONS.get(change.knob) or why_left(change, "TrainingArguments")


def _notes(said: list[Change], fields: Mapping[str, Value | None]) -> list[str]:
    notes = about_accumulation(said, ARGUMENTS, TRAINER)
    if any(is_by(change, TRAINER) for change in said):
        notes.append(
            "set `trainer.loss_is_scaled_for_ga = False` on the Trainer as well: "
            "this model's loss is a plain mean, and the Trainer would not divide it by the parts"
        )
    if fields.get("torch_compile") and any(
        c.knob == "compile_mode" and not is_by(c, ARGUMENTS) for c in said
    ):
        notes.append("`torch_compile` turns TF32 on as well, on devices that have it")
    if "gradient_checkpointing" in fields:
        notes.append("newer releases of transformers call the field `activation_checkpointing`")
    if set(_NEWER.values()) & set(fields):
        names = ", ".join(f"`{name}`" for name in _NEWER.values() if name in fields)
        notes.append(f"older releases of transformers 5 lack {names}; 5.23 has it")
    return notes
