"""A pick as the part of a DeepSpeed configuration that it decides. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.export.formats.content import TOGETHER, Exported, Left, fields_of, json_text, why_left
from autotune.knobs.frameworks import DEEPSPEED
from autotune.model.change import Change, Keyword, Patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.export.formats.content import TunedValues
    from autotune.model.config import Value


def deepspeed_config(tuned: TunedValues) -> Exported:
    """Return a configuration with batch sizes, including an unchanged micro-batch, and the number format.

    DeepSpeed refuses a file without a batch size. The user adds the rest (ZeRO, optimizer, schedule).
    """
    counts = {knob: tuned.knobs[knob] for knob in TOGETHER if _is_count(tuned.knobs, knob)}
    own = (Change(knob=knob, value=value, spelling=Patch()) for knob, value in counts.items())
    config: dict[str, Any] = {}
    for found in (fields_of(change, DEEPSPEED, tuned) for change in own):
        config |= found if isinstance(found, dict) else {}
    included: list[Change] = []
    left: list[Left] = []
    for change in tuned.changes:
        found = fields_of(change, DEEPSPEED, tuned, or_arguments=False)
        if found is None and isinstance(change.spelling, Keyword) and change.spelling.target == DEEPSPEED:
            _put(config, change.spelling.name, change.value)
            included.append(change)
            continue
        found = found or why_left(change, "its file")
        if isinstance(found, str):
            left.append(Left(knob=change.knob, value=change.value, reason=found))
            continue
        config |= found
        included.append(change)
    return Exported(
        text=json_text(config),
        data=config,
        included=tuple(change.knob for change in included),
        left=tuple(left),
        notes=tuple(_notes(included, config)),
        comment="",
    )


def _put(config: dict[str, Any], name: str, value: Value) -> None:
    """Set an entry by its dotted name: ``zero_optimization.stage``."""
    *sections, last = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def _is_its_own(change: Change) -> bool:
    """Return whether the value was measured as an entry of DeepSpeed's configuration."""
    return isinstance(change.spelling, Keyword) and change.spelling.target == DEEPSPEED


def _is_count(knobs: Mapping[str, Value], knob: str) -> bool:
    value = knobs.get(knob)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _notes(included: list[Change], config: Mapping[str, Any]) -> list[str]:
    notes: list[str] = []
    others = [change for change in included if not _is_its_own(change)]
    if others:
        names = ", ".join(change.knob for change in others)
        which = "none of this was" if len(others) == len(included) else f"{names}: not"
        notes.append(f"{which} measured under DeepSpeed")
    if "train_micro_batch_size_per_gpu" in config:
        notes.append("`train_batch_size` follows from these and the number of processes; leave it out")
    else:
        notes.append("the script's micro-batch is not known; DeepSpeed needs one")
    if any(change.knob == "precision" and change.value != "fp32" for change in others):
        notes.append(
            "DeepSpeed converts the weights and keeps a float32 copy; autocast was measured, which its "
            "section `torch_autocast` resembles"
        )
    if any(change.knob == "accumulation" and change.value != 1 for change in included):
        notes.append("DeepSpeed divides the loss by the parts, correct for a mean only")
    return notes
