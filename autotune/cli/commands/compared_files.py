"""Comparison of two best.yaml: their claims, their origins, and the differences of their configurations.

No difference is claimed: the figures of a file come from pairs with its own script, in its own search.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from autotune.cli.commands.apply import claim_text
from autotune.model.config import config_text, value_text
from autotune.report.text.study_comparison import SCHEMA, Statement, two_columns
from autotune.report.view.summary import (
    GIB,
    LOSS_WORDS,
    bytes_text,
    number_text,
    plural,
)
from autotune.text.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.export.best_config import BestConfig, EstimatePart, MemoryPart, PickPart
    from autotune.model.config import Value

Name = Literal["best", "safe", "fastest", "likely"]

_PICKS: Final[tuple[Name, ...]] = ("best", "safe", "fastest", "likely")
_SCRIPT: Final = ("script", "arguments")
_MACHINE: Final = ("device", "driver", "CPU", "CPUs", "PyTorch", "Python")
_ALWAYS: Final = ("study", "measured", *_SCRIPT, "device", "CPU", "PyTorch", "space")
"""Shown where both have the same, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two.

    Args:
        file: As it was named.
        best: Its content.
    """

    file: str
    best: BestConfig

    def pick(self, name: Name) -> PickPart | None:
        """Return the pick of that name if it changes a knob, or None."""
        found = self.best.picks.get(name)
        return found if found is not None and found.changes else None

    def knobs(self, name: Name) -> Mapping[str, Value]:
        """Return every knob under that pick, or of the script if there is no such pick."""
        found = self.pick(name)
        return self.best.baseline.knobs if found is None else found.knobs

    @property
    def around(self) -> dict[str, str]:
        """Return the properties, apart from figures, in which two files can differ."""
        best, study, machine = self.best, self.best.study, self.best.environment
        title = study.module or Path(study.script).name
        return {
            "study": study.label or study.id,
            "measured": best.provenance.created,
            "script": f"{title} {machine.script_sha256[:12]}".rstrip(),
            "arguments": redact(" ".join(study.argv)),
            "device": ", ".join(sorted(machine.gpu)) or "none",
            "driver": machine.driver,
            "CPU": machine.cpu or "unknown",
            "CPUs": str(machine.cpus or "unknown"),
            "PyTorch": machine.torch or "unknown",
            "Python": machine.python or "unknown",
            "space": best.provenance.space,
            "objective": best.objective.metric,
            "effective batch": best.effective_batch.rule,
            "planned steps": str(best.objective.run_steps or ""),
            "autotune": best.provenance.autotune,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFiles:
    """Both files, the differences between them, and the valid statements about them."""

    a: Side
    b: Side
    differences: tuple[tuple[str, str, str], ...]
    knobs: dict[Name, dict[str, tuple[Value | None, Value | None]]]
    same_script: bool
    same_machine: bool
    verify: tuple[str, ...]
    statements: tuple[Statement, ...]


def compare_files(a: Side, b: Side) -> ComparedFiles:
    """Put two files side by side."""
    left, right = a.around, b.around
    differences = tuple((name, left[name], right[name]) for name in left if left[name] != right[name])
    named = {name for name, _, _ in differences}
    same_script, same_machine = named.isdisjoint(_SCRIPT), named.isdisjoint(_MACHINE)
    verify = tuple(shlex.join(["autotune", "verify", side.file]) for side in (a, b) if _can_be_verified(side))
    return ComparedFiles(
        a=a,
        b=b,
        differences=differences,
        knobs={name: found for name in _PICKS if (found := _differing(a.knobs(name), b.knobs(name)))},
        same_script=same_script,
        same_machine=same_machine,
        verify=verify,
        statements=tuple(
            Statement(about=about, verdict="incomparable", sentence=sentence)
            for about, sentence in (
                ("speedup", _apart(a, b)),
                ("script", "" if same_script else "They are of different scripts or arguments."),
                ("machine", "" if same_machine else "They were measured on different machines or versions."),
                ("verify", f"To measure both here and now: {', '.join(verify)}" if verify else ""),
            )
            if sentence
        ),
    )


def files_text(found: ComparedFiles, *, columns: int = 0) -> str:
    """Return the comparison for users, as one screen; see `report.text.study_comparison.two_columns`."""
    a, b = found.a, found.b
    left, right = a.around, b.around
    base, other = a.best.baseline, b.best.baseline
    differing = {name for name, _, _ in found.differences}
    rows = [("", a.file, b.file)]
    rows += [
        (name, left[name], right[name])
        for name in left
        if name in differing or (name in _ALWAYS and left[name])
    ]
    rows.append(("your script", _rate(base.throughput), _rate(other.throughput)))
    rows.append(("", _memory(base.peak_memory), _memory(other.peak_memory)))
    for name in _PICKS:
        ours, theirs = a.pick(name), b.pick(name)
        if name != "best" and ours is None and theirs is None:
            continue
        rows.append((name, _claim(ours), _claim(theirs)))
        rows.append(("", _config(ours), _config(theirs)))
        rows.append(("", _costs(ours), _costs(theirs)))
        rows += [
            (f"  {knob}", value_text(one) or "unread", value_text(another) or "unread")
            for knob, (one, another) in found.knobs.get(name, {}).items()
        ]
    return two_columns(rows, [statement.sentence for statement in found.statements], columns=columns)


def files_data(found: ComparedFiles) -> dict[str, Any]:
    """Return the comparison as ``autotune.compare/v1``, with differing knobs and the next command."""
    return {
        "schema": SCHEMA,
        "a": _side_data(found.a),
        "b": _side_data(found.b),
        "differences": [{"what": n, "a": left, "b": right} for n, left, right in found.differences],
        "knobs": {
            name: {knob: {"a": one, "b": another} for knob, (one, another) in rows.items()}
            for name, rows in found.knobs.items()
        },
        "same_script": found.same_script,
        "same_machine": found.same_machine,
        "verify": list(found.verify),
        "statements": [
            {"about": s.about, "verdict": s.verdict, "sentence": s.sentence} for s in found.statements
        ],
    }


def _differing(
    left: Mapping[str, Value], right: Mapping[str, Value]
) -> dict[str, tuple[Value | None, Value | None]]:
    return {
        knob: (left.get(knob), right.get(knob))
        for knob in dict.fromkeys([*left, *right])
        if left.get(knob) != right.get(knob)
    }


def _can_be_verified(side: Side) -> bool:
    """Return whether the pick that `verify` takes from the file changes a knob."""
    return side.pick(side.best.pick) is not None


def _apart(a: Side, b: Side) -> str:
    if a.best.study.id == b.best.study.id:
        return (
            "Both are of one search: each claim is against your script, and no pair compares the two "
            "directly."
        )
    return (
        "These are claims of separate searches: each was measured against the script in its own search, "
        "not against the other."
    )


def _claim(pick: PickPart | None) -> str:
    if pick is None:
        return "none"
    return claim_text(pick) if pick.runs else f"{claim_text(pick)}, {plural(pick.speedup.n, 'pair')}"


def _config(pick: PickPart | None) -> str:
    return "" if pick is None else config_text({change.knob: change.value for change in pick.changes})


def _costs(pick: PickPart | None) -> str:
    if pick is None:
        return ""
    loss = LOSS_WORDS.get(pick.loss.verdict, pick.loss.verdict)
    return f"{_rate(pick.throughput)}, {_memory(pick.peak_memory)}, {loss}"


def _rate(rate: EstimatePart) -> str:
    if rate.low is None or rate.high is None:
        return f"{number_text(rate.value)} {rate.unit}"
    return f"{number_text(rate.value)} [{number_text(rate.low)}, {number_text(rate.high)}] {rate.unit}"


def _memory(part: MemoryPart | None) -> str:
    return bytes_text(_bytes(part))


def _bytes(part: MemoryPart | None) -> int | None:
    return None if part is None else round(part.value * GIB)


def _side_data(side: Side) -> dict[str, Any]:
    best = side.best
    return {
        "file": side.file,
        "id": best.study.id,
        "label": best.study.label,
        "around": side.around,
        "trials": best.provenance.trials,
        "baseline": best.baseline.throughput.model_dump(mode="json"),
        "picks": {
            name: {
                "config": {change.knob: change.value for change in pick.changes},
                "speedup": pick.speedup.model_dump(mode="json"),
                "throughput": pick.throughput.model_dump(mode="json"),
                "peak_bytes": _bytes(pick.peak_memory),
                "loss": pick.loss.verdict,
            }
            for name in _PICKS
            if (pick := side.pick(name)) is not None
        },
    }
